// engine/session.cpp -- prefill in chunks, decode, sampling and scoring of one sequence.
#include "engine/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/error.h"
#include "engine/forward.h"

namespace lily {

// Marks the session as in use for the length of one call, and refuses a second user and a closed session.
class Session::Entry {
 public:
  explicit Entry(const Session& session) : session_(session) {
    if (session_.in_use_.exchange(true, std::memory_order_acquire)) {
      throw Error(ErrorKind::busy,
                  "this session is in use by another call; a session serves one caller at a time, make one session for "
                  "each thread");
    }
    if (session_.model_ == nullptr) {
      session_.in_use_.store(false, std::memory_order_release);
      throw Error(ErrorKind::closed, "this session is closed; make a new one with model.session()");
    }
  }
  ~Entry() { session_.in_use_.store(false, std::memory_order_release); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  const Session& session_;
};

Session::Session(std::shared_ptr<Model> model) : model_(std::move(model)), state_(model_->backend().create_state()) {}

void Session::check_ids(std::span<const std::int32_t> ids) const {
  if (ids.empty()) throw Error(ErrorKind::invalid_argument, "no token ids were given; at least one is needed");
  const std::int64_t vocab_size = model_->config().vocab_size;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      throw Error(ErrorKind::invalid_argument, "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                                   " is outside the vocabulary [0, " + std::to_string(vocab_size) + ")");
    }
  }
}

std::vector<float>& Session::writable_logits() {
  // An array handed out earlier keeps its values: a new buffer is made while somebody still holds the old one.
  if (logits_ == nullptr || logits_.use_count() > 1) {
    logits_ = std::make_shared<std::vector<float>>(static_cast<std::size_t>(model_->config().vocab_size));
  }
  return *logits_;
}

void Session::run(std::span<const std::int32_t> ids, SessionState& state, const ProgressCallback& progress) {
  const auto total = static_cast<std::int64_t>(ids.size());
  const std::int64_t max_context = model_->options().max_context;
  if (state.position() + total > max_context) {
    throw Error(ErrorKind::context_overflow,
                "the session holds " + std::to_string(state.position()) + " tokens and cannot take " +
                    std::to_string(total) + " more: its maximum context is " + std::to_string(max_context) +
                    " (max_context of Model.load)");
  }
  logits_valid_ = false;
  Backend& backend = model_->backend();
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t rows = std::min(total - begin, backend.max_chunk_rows());
    const auto chunk = ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows));
    const bool final_chunk = begin + rows == total;
    {
      const std::lock_guard lock(model_->compute_mutex());
      run_layers(model_->config(), backend, state, chunk, final_chunk ? rows - 1 : rows);
      if (final_chunk) backend.head(rows - 1, writable_logits());
    }
    tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
    begin += rows;
    logits_valid_ = final_chunk;
    if (progress) progress(begin, total);
  }
}

void Session::prefill(std::span<const std::int32_t> ids, const ProgressCallback& progress) {
  const Entry entry(*this);
  model_->require_same_process();
  check_ids(ids);
  run(ids, *state_, progress);
}

void Session::decode(std::int32_t token) {
  const Entry entry(*this);
  model_->require_same_process();
  const std::span ids(&token, 1);
  check_ids(ids);
  run(ids, *state_, {});
}

std::int32_t Session::sample(const Sampling& sampling, std::uint64_t seed, std::int64_t candidates) {
  const Entry entry(*this);
  sampling.validate();
  if (!logits_valid_) {
    throw Error(ErrorKind::invalid_argument, "there are no logits to sample from; call prefill() or decode() first");
  }
  const auto count = static_cast<std::size_t>(std::clamp<std::int64_t>(candidates, 1, model_->config().vocab_size));
  return sampler_.sample(std::span<const float>(*logits_).first(count), sampling, seed,
                         static_cast<std::uint64_t>(state_->position()));
}

Scores Session::score(std::span<const std::int32_t> ids, const ProgressCallback& progress) {
  const Entry entry(*this);
  model_->require_same_process();
  check_ids(ids);
  const auto total = static_cast<std::int64_t>(ids.size());
  if (total < 2) throw Error(ErrorKind::invalid_argument, "scoring needs at least two token ids");
  if (total > model_->options().max_context) {
    throw Error(ErrorKind::context_overflow, std::to_string(total) + " token ids exceed the maximum context of " +
                                                 std::to_string(model_->options().max_context));
  }
  Backend& backend = model_->backend();
  const auto state = backend.create_state();
  Scores scores;
  scores.log_probabilities.resize(static_cast<std::size_t>(total - 1));
  scores.argmax.resize(static_cast<std::size_t>(total - 1));
  for (std::int64_t begin = 0; begin < total - 1;) {
    const std::int64_t rows = std::min(total - 1 - begin, backend.max_chunk_rows());
    const auto first = static_cast<std::size_t>(begin);
    const auto count = static_cast<std::size_t>(rows);
    {
      const std::lock_guard lock(model_->compute_mutex());
      run_layers(model_->config(), backend, *state, ids.subspan(first, count), 0);
      backend.score(ids.subspan(first + 1, count), std::span(scores.log_probabilities).subspan(first, count),
                    std::span(scores.argmax).subspan(first, count));
    }
    begin += rows;
    if (progress) progress(begin, total - 1);
  }
  return scores;
}

void Session::reset() {
  const Entry entry(*this);
  state_->reset();
  tokens_.clear();
  logits_valid_ = false;
}

void Session::close() {
  if (closed()) return;
  const Entry entry(*this);
  state_.reset();
  tokens_.clear();
  logits_.reset();
  logits_valid_ = false;
  model_.reset();
}

std::int64_t Session::position() const {
  const Entry entry(*this);
  return state_->position();
}

std::vector<std::int32_t> Session::tokens() const {
  const Entry entry(*this);
  return tokens_;
}

std::size_t Session::state_bytes() const {
  const Entry entry(*this);
  return state_->bytes();
}

std::shared_ptr<const std::vector<float>> Session::logits() const {
  const Entry entry(*this);
  return logits_valid_ ? logits_ : nullptr;
}

}  // namespace lily
