// base/backend.h -- the interface that sessions use: prefill, score and step, on states that the backend makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lily {

enum class StateType : std::uint8_t { float32, float16, bfloat16 };

// One tensor of a state as it is written to a file: contiguous, its layout independent of the backend's own.
struct StateTensor {
  std::string name;
  StateType type;
  std::vector<std::int64_t> shape;
};

// All state that a sequence carries between calls: KV cache, recurrent states, convolution windows.
// Made by the backend that uses it. Its position is the number of tokens it has seen.
class SessionState {
 public:
  virtual ~SessionState() = default;
  [[nodiscard]] std::int64_t position() const { return position_; }
  // The rows just computed are now part of the past.
  void advance(std::int64_t rows) { position_ += rows; }
  // Returns to the empty sequence; keeps allocations that nobody shares.
  virtual void reset() = 0;

  // An independent state at the same position. Memory is shared until one of the two writes it. Several
  // threads may clone one state that nobody changes.
  [[nodiscard]] virtual std::unique_ptr<SessionState> clone() const = 0;
  // Calls visit(identity, bytes, shared) for every piece of memory held. Clones that share a piece report the same
  // identity; `shared` says that some other state holds it now.
  using MemoryVisitor = std::function<void(const void*, std::size_t, bool)>;
  virtual void visit_memory(const MemoryVisitor& visit) const = 0;
  // Bytes held now, shared ones included.
  [[nodiscard]] std::size_t bytes() const {
    std::size_t total = 0;
    visit_memory([&total](const void* /*identity*/, std::size_t size, bool /*shared*/) { total += size; });
    return total;
  }

  // The tensors of a state at `position`, and copies of their values out of this state and into it.
  [[nodiscard]] virtual std::vector<StateTensor> tensors(std::int64_t position) const = 0;
  virtual void export_tensor(std::size_t index, std::span<std::byte> out) const = 0;
  // Makes this an allocated state at `position` whose values are undefined until every tensor is imported.
  virtual void begin_import(std::int64_t position) = 0;
  virtual void import_tensor(std::size_t index, std::span<const std::byte> values) = 0;
  // After a chunk that failed: whether this is still, or again, the state at `position`, as before the chunk.
  [[nodiscard]] virtual bool is_whole_at(std::int64_t /*position*/) const { return false; }

 protected:
  SessionState() = default;
  SessionState(const SessionState&) = default;
  SessionState& operator=(const SessionState&) = default;

  std::int64_t position_ = 0;
};

// How a device picks a token by itself: Sampling without options that need the output so far or a list.
struct DeviceChoice {
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::uint64_t seed = 0;
  std::int64_t candidates = 0;
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

enum class BlockKind : std::uint8_t { embedding, mixer, moe };
// Called after a block with the residual stream: [rows, hidden_size].
using BlockObserver = std::function<void(std::int64_t layer, BlockKind kind, std::span<const float> residual)>;

// One sequence's part in a step.
struct StepRow {
  SessionState* state = nullptr;
  std::int32_t token = 0;              // to append
  std::optional<DeviceChoice> choice;  // how a device may pick the token after it
  std::span<float> logits;             // [vocab_size] behind `token`; empty where read_logits() will do
  // Result: the token that the device picked by `choice`, whose step it has started. Nothing: the caller picks.
  std::optional<std::int32_t> picked;
};

// Computes on states: prompts in chunks, and steps that append one token to each of their rows' sequences. A call
// either completes and advances the states, or throws; then SessionState::is_whole_at() tells what is left.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::unique_ptr<SessionState> create_state() const = 0;
  // Bytes of working memory held now, without the weights and the sessions' states.
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  // Whether it reads the mapped weights while it computes; otherwise it has its own copies.
  [[nodiscard]] virtual bool reads_mapped_weights() const { return true; }
  // Most ids of one prefill() or score().
  [[nodiscard]] virtual std::int64_t max_chunk_rows() const = 0;

  // Appends a chunk of a prompt. `logits`: [vocab_size] of its last row, or empty where nobody needs them.
  virtual void prefill(SessionState& state, std::span<const std::int32_t> ids, std::span<float> logits) = 0;
  // Appends a chunk like prefill(), and shows the residual stream after every block. Returns false, with nothing done,
  // if the backend does not keep it for the host.
  [[nodiscard]] virtual bool trace(SessionState& /*state*/, std::span<const std::int32_t> /*ids*/,
                                   const BlockObserver& /*observe*/) {
    return false;
  }
  // Appends a chunk; for each row the log-probability of its target, NaN where a logit is not finite, and the most
  // probable token.
  virtual void score(SessionState& state, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                     std::span<float> log_probabilities, std::span<std::int32_t> argmax) = 0;
  // Appends each row's token. Rows belong to distinct states.
  virtual void step(std::span<StepRow> rows) = 0;

  // Whether steps run beside the host. Then a device may pick tokens, and it keeps the logits of each state's latest
  // step for read_logits().
  [[nodiscard]] virtual bool runs_ahead() const { return false; }
  // Starts a step that step() will be asked for; abandons steps started before for other tokens.
  virtual void begin_step(std::span<const StepRow> /*rows*/) {}
  // Logits of the state's latest complete step, [vocab_size].
  virtual void read_logits(const SessionState& /*state*/, std::span<float> /*logits*/) {}
};

}  // namespace lily
