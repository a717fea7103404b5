// engine/session.h -- one sequence: its tokens, its state and the logits of its last position.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/model.h"
#include "engine/sampler.h"
#include "engine/snapshot.h"

namespace lily {

// Called between chunks; may throw to stop. (done tokens, all tokens of the call)
using ProgressCallback = std::function<void(std::int64_t, std::int64_t)>;

using Logits = std::shared_ptr<const std::vector<float>>;  // [vocab_size]

struct Scores {
  std::vector<float> log_probabilities;  // [tokens - 1] of the targets, natural logarithm
  std::vector<std::int32_t> argmax;      // [tokens - 1] most probable token at each position
};

// The choice that every next_token() of a generation makes. Nothing here refers to the caller's memory.
struct TokenRequest {
  Sampling sampling;
  std::uint64_t seed = 0;
  std::int64_t candidates = 0;           // ids below are chosen from
  std::vector<std::int32_t> stops;       // ids that end the generation
  std::int64_t output_begin = 0;         // index in the sequence where the output begins, which penalties look at
  std::optional<std::int64_t> logprobs;  // how many of the most probable tokens to report; none: no logprobs at all
};

struct TokenChoice {
  std::int32_t token = 0;
  bool stops = false;  // it is a stop token, and not part of the sequence
  Logprobs logprobs;   // if they were requested
};

// One caller at a time: a second thread gets Error(busy), and the session is unchanged. Distinct sessions of a model
// may be used from distinct threads; their chunks take turns.
//
// A call that fails inside a chunk (out of memory) may lose the state, which cannot be rewound: further calls are then
// refused until reset(). So are calls after one whose logits were not finite: Error(non_finite), which says where the
// values first were not, found by computing the sequence once more. Every other failure leaves the sequence as it was,
// or longer by whole chunks.
class Session {
 public:
  explicit Session(std::shared_ptr<Model> model);

  // Appends ids in chunks and returns the last position's logits. When the callback throws, the chunks before are
  // part of the session (see tokens()) and there are no logits until the next call.
  Logits prefill(std::span<const std::int32_t> ids, const ProgressCallback& progress);
  // Appends one token and returns its logits.
  Logits decode(std::int32_t token);
  // Ends an earlier cancellation and returns the revision that the first next_token() expects.
  [[nodiscard]] std::uint64_t begin_generation();
  // Samples the next position's token and appends it; it is computed when it is needed, so that the last token of a
  // generation costs nothing. A stop token is not appended.
  // Throws when the sequence is not at expected_revision; each appended token adds one to it.
  [[nodiscard]] TokenChoice next_token(const TokenRequest& request, TokenMask mask, std::uint64_t expected_revision);
  // Teacher-forced from the empty sequence; leaves this session as it was. `targets` [tokens - 1] are the ids whose
  // log-probabilities are wanted at each position; empty: those of ids[1:].
  [[nodiscard]] Scores score(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                             const ProgressCallback& progress);
  // From another thread: the call in progress throws Error(cancelled) after its current chunk or token.
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void reset();
  // The sequence as it is now; `with_pending` false leaves out a last token that is not computed yet.
  [[nodiscard]] std::shared_ptr<Snapshot> snapshot(bool with_pending);
  // Continues from a snapshot of a session of the same model.
  void restore(const Snapshot& snapshot);
  void close();
  // From any thread: cancels the call in progress and refuses every later one but close().
  void begin_close() { closing_.store(true, std::memory_order_relaxed); }
  // Whether the call in progress is one of this thread, which asks from within a callback.
  [[nodiscard]] bool is_called_here() const {
    return use_.load(std::memory_order_acquire) == Use::calling &&
           caller_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  [[nodiscard]] bool closed() const { return model_ == nullptr; }
  [[nodiscard]] std::int64_t position() const;
  [[nodiscard]] std::vector<std::int32_t> tokens() const;
  [[nodiscard]] std::size_t state_bytes() const;
  // Logits of the last position [vocab_size]; null before the first prefill and after an interrupted one.
  [[nodiscard]] Logits logits();

 private:
  class Entry;  // holds the session for one call
  class Reading;

  void prepare_call(std::span<const std::int32_t> ids);
  void check_ids(std::span<const std::int32_t> ids) const;
  void check_usable() const;
  void check_room(std::int64_t count) const;
  void compute_pending();
  [[nodiscard]] std::optional<std::int32_t> step(std::int32_t token, const std::optional<DeviceChoice>& choice);
  void run(std::span<const std::int32_t> ids, const ProgressCallback& progress);
  void run_chunk(std::span<const std::int32_t> chunk, bool final_chunk);
  template <class Compute>
  void extend(std::span<const std::int32_t> chunk, bool with_logits, Compute&& compute);
  void between_chunks(std::int64_t done, std::int64_t total, const ProgressCallback& progress) const;
  [[nodiscard]] std::int32_t sample(const TokenRequest& request, TokenMask mask, std::span<const float> logits);
  void check_finite(std::span<const float> logits);
  [[nodiscard]] std::string describe_non_finite(std::span<const std::int32_t> ids, const SessionState& state) const;
  std::vector<float>& writable_logits();
  // logits_, after it was read from the device if it still lies there.
  const std::shared_ptr<std::vector<float>>& fetched_logits();

  std::shared_ptr<Model> model_;
  std::unique_ptr<SessionState> state_;
  std::vector<std::int32_t> tokens_;     // computed
  std::optional<std::int32_t> pending_;  // the sequence's last token, when next_token() has left it to be computed
  std::uint64_t revision_ = 0;           // one more for every change of the sequence
  bool state_lost_ = false;
  std::string not_finite_;  // what is wrong with the state, where its logits were not finite
  std::shared_ptr<std::vector<float>> logits_;
  bool logits_valid_ = false;
  bool logits_on_device_ = false;  // of a step whose token the device picked: few callers look at them
  Sampler sampler_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> closing_{false};
  enum class Use : std::uint8_t { none, reading, calling, closing };
  mutable std::atomic<Use> use_{Use::none};
  mutable std::atomic<std::thread::id> caller_;  // of the latest call
};

}  // namespace lily
