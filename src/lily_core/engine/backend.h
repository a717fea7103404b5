// engine/backend.h -- what the forward pass asks of a device: whole blocks of the model, for a chunk of rows or one.
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
  // After all blocks of a chunk: the chunk's rows are now part of the past.
  void advance(std::int64_t rows) { position_ += rows; }
  // Back to the empty sequence; keeps allocations that nobody shares.
  virtual void reset() = 0;

  // A state at the same position that goes its own way. Memory is shared until one of the two writes it. Several
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

// How a device picks a token by itself: Sampling without what needs the output so far or a list.
struct DeviceChoice {
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::uint64_t seed = 0;
  std::int64_t candidates = 0;
  friend bool operator==(const DeviceChoice&, const DeviceChoice&) = default;
};

// One chunk at a time: begin_chunk, every layer's mixer and MoE block in order, then head or score.
// The residual stream of the chunk lives in the backend. A block whose `first_needed_row` is positive may leave
// the residual rows below it undefined, as nothing reads them any more (last layer of a prompt).
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::unique_ptr<SessionState> create_state() const = 0;
  // Bytes of working memory held now, the weights and the sessions' states not counted.
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  // Whether the mapped weights are read while it computes; otherwise it has copies of its own.
  [[nodiscard]] virtual bool reads_mapped_weights() const { return true; }
  // Rows that one chunk may hold.
  [[nodiscard]] virtual std::int64_t max_chunk_rows() const = 0;
  virtual void begin_chunk(std::span<const std::int32_t> ids) = 0;
  virtual void gdn_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) = 0;
  virtual void attention_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) = 0;
  virtual void moe_block(std::int64_t layer, std::int64_t first_needed_row) = 0;
  // Logits of one row of the chunk: [vocab_size] float32.
  virtual void head(std::int64_t row, std::span<float> logits) = 0;
  // For rows 0.. of the chunk: the log-probability of targets[row], NaN where a logit is not finite, and the most
  // probable token.
  virtual void score(std::span<const std::int32_t> targets, std::span<float> log_probabilities,
                     std::span<std::int32_t> argmax) = 0;

  // One row of the chunk's residual stream [hidden_size] behind the latest block; nothing where the backend does not
  // keep it for the host.
  [[nodiscard]] virtual std::span<const float> residual(std::int64_t /*row*/) const { return {}; }

  // Decoding on a device has passes of its own, only where has_steps(); it may pick tokens itself and run ahead of the
  // host, only where picks_tokens().
  [[nodiscard]] virtual bool has_steps() const { return false; }
  [[nodiscard]] virtual bool picks_tokens() const { return false; }
  // Starts to compute `token` on top of the state; what was started before for another token is given up.
  virtual void begin_step(SessionState& /*state*/, std::int32_t /*token*/,
                          const std::optional<DeviceChoice>& /*choice*/) {}
  // Computes `token` as a chunk of one row would, and advances the state. Returns the token that the device picked by
  // `choice`; the step of that token has been started. Nothing when it did not pick: then the caller does.
  virtual std::optional<std::int32_t> step(SessionState& /*state*/, std::int32_t /*token*/,
                                           const std::optional<DeviceChoice>& /*choice*/) {
    return std::nullopt;
  }
  // Logits of the latest step that is complete, [vocab_size] float32: of that one alone, until the next call.
  virtual void read_logits(const SessionState& /*state*/, std::span<float> /*logits*/) {}
};

}  // namespace lily
