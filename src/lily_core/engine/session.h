// engine/session.h -- one sequence: its tokens, its state and the logits of its last position.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/model.h"
#include "engine/sampler.h"

namespace lily {

// Called between chunks; may throw to stop. (done tokens, all tokens of the call)
using ProgressCallback = std::function<void(std::int64_t, std::int64_t)>;

struct Scores {
  std::vector<float> log_probabilities;  // [tokens - 1] of ids[1:], natural logarithm
  std::vector<std::int32_t> argmax;      // [tokens - 1] most probable token at each position
};

// One caller at a time: a second thread gets Error(busy), and the session is unchanged. Distinct sessions of a model
// may be used from distinct threads; their chunks take turns.
class Session {
 public:
  explicit Session(std::shared_ptr<Model> model);

  // Appends ids in chunks and computes the last position's logits. When the callback throws, the chunks before are
  // part of the session (see tokens()) and there are no logits until the next call.
  void prefill(std::span<const std::int32_t> ids, const ProgressCallback& progress);
  // Appends one token and computes its logits.
  void decode(std::int32_t token);
  // The token that sampling picks for the next position from the current logits, among ids below candidates.
  [[nodiscard]] std::int32_t sample(const Sampling& sampling, std::uint64_t seed, std::int64_t candidates);
  // Teacher-forced from the empty sequence; leaves this session as it was.
  [[nodiscard]] Scores score(std::span<const std::int32_t> ids, const ProgressCallback& progress);
  void reset();
  void close();

  [[nodiscard]] bool closed() const { return model_ == nullptr; }
  [[nodiscard]] std::int64_t position() const;
  [[nodiscard]] std::vector<std::int32_t> tokens() const;
  [[nodiscard]] std::size_t state_bytes() const;
  // Logits of the last position [vocab_size]; null before the first prefill and after an interrupted one.
  [[nodiscard]] std::shared_ptr<const std::vector<float>> logits() const;

 private:
  class Entry;  // holds the session for one call

  void check_ids(std::span<const std::int32_t> ids) const;
  void run(std::span<const std::int32_t> ids, SessionState& state, const ProgressCallback& progress);
  std::vector<float>& writable_logits();

  std::shared_ptr<Model> model_;
  std::unique_ptr<SessionState> state_;
  std::vector<std::int32_t> tokens_;
  std::shared_ptr<std::vector<float>> logits_;
  bool logits_valid_ = false;
  Sampler sampler_;
  mutable std::atomic<bool> in_use_{false};
};

}  // namespace lily
