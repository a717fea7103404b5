// engine/session.cpp -- prefill in chunks, decode, sampling and scoring of one sequence.
#include "engine/session.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/default_floats.h"
#include "base/error.h"
#include "engine/non_finite.h"

namespace lily {

namespace {

// How a device can pick the token that the request asks for, if it can.
std::optional<DeviceChoice> device_choice(const TokenRequest& request, TokenMask mask, std::int64_t candidates) {
  const Sampling& sampling = request.sampling;
  if (sampling.penalizes() || !sampling.logit_bias.empty() || !mask.empty()) return std::nullopt;
  return DeviceChoice{.temperature = sampling.temperature,
                      .top_k = sampling.top_k,
                      .top_p = sampling.top_p,
                      .min_p = sampling.min_p,
                      .seed = request.seed,
                      .candidates = candidates};
}

// Maximum number of tokens computed once more to find where values first are not finite.
constexpr std::size_t kSearchedTokens = 16384;
[[noreturn]] void refuse_closed_session() {
  throw Error(ErrorKind::closed, "this session is closed; make a new one with model.session()");
}

[[noreturn]] void refuse_second_caller() {
  throw Error(
      ErrorKind::busy,
      "this session is in use by another call; a session serves one caller at a time, make one session for each "
      "thread");
}

}  // namespace

// Marks the session as in use for the length of one call, and refuses a second caller and a closed session. Everything
// in the call is computed by IEEE's rules.
class Session::Entry {
 public:
  explicit Entry(const Session& session, Use use = Use::calling) : session_(session) {
    // Reading a property is quick: wait for it, so that an observer never makes a call fail.
    for (Use found = Use::none; !session_.use_.compare_exchange_weak(found, use, std::memory_order_acquire);
         found = Use::none) {
      if (found == Use::none || found == Use::reading) continue;
      if (use != Use::closing && session_.closing_.load(std::memory_order_relaxed)) refuse_closed_session();
      refuse_second_caller();
    }
    const bool refused = use == Use::calling && session_.closing_.load(std::memory_order_relaxed);
    if (session_.model_ == nullptr || refused) {
      session_.use_.store(Use::none, std::memory_order_release);
      refuse_closed_session();
    }
    if (use == Use::calling) session_.caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ~Entry() {
    session_.caller_.store({}, std::memory_order_relaxed);  // or a later call of another thread would seem to be ours
    session_.use_.store(Use::none, std::memory_order_release);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

 private:
  const Session& session_;
  const DefaultFloats floats_;
};

class Session::Reading : public Entry {
 public:
  explicit Reading(const Session& session) : Entry(session, Use::reading) {}
};

Session::Session(std::shared_ptr<Model> model) : model_(std::move(model)), state_(model_->backend().create_state()) {}

void Session::check_ids(std::span<const std::int32_t> ids) const {
  if (ids.empty()) throw Error(ErrorKind::invalid_argument, "no token ids were given; at least one is needed");
  const std::int64_t vocab_size = model_->config().vocab_size;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      throw Error(ErrorKind::invalid_argument, "token id " + std::to_string(ids[i]) + " at index " + std::to_string(i) +
                                                   " is outside the vocabulary [0, " + std::to_string(vocab_size) +
                                                   ")");
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

const std::shared_ptr<std::vector<float>>& Session::fetched_logits() {
  if (logits_on_device_) {
    std::vector<float>& logits = writable_logits();
    {
      const std::scoped_lock lock(model_->compute_mutex());
      model_->backend().read_logits(*state_, logits);
    }
    logits_on_device_ = false;
    check_finite(logits);
  }
  return logits_;
}

// Non-finite logits make everything computed from them useless, and their state, too.
void Session::check_finite(std::span<const float> logits) {
  if (all_finite(logits)) return;
  state_lost_ = true;
  logits_valid_ = logits_on_device_ = false;
  not_finite_ = describe_non_finite(tokens_, *state_);
  throw Error(ErrorKind::non_finite, not_finite_);
}

std::string Session::describe_non_finite(std::span<const std::int32_t> ids, const SessionState& state) const {
  const std::string last = std::to_string(static_cast<std::int64_t>(ids.size()) - 1);
  auto place = find_non_finite(model_->config(), model_->backend(), model_->compute_mutex(),
                               ids.first(std::min(ids.size(), kSearchedTokens)), cancelled_);
  if (!place) place = find_non_finite(state);
  return "the logits at position " + last +
         " are not finite; the first values that are not: " + place.value_or("position " + last + ", norm or lm_head") +
         ". Check the checkpoint's files there; reset() the session before it is used again";
}

void Session::check_usable() const {
  model_->require_same_process();
  if (!not_finite_.empty()) throw Error(ErrorKind::non_finite, not_finite_);
  if (state_lost_) {
    throw Error(ErrorKind::backend,
                "an earlier call failed while it computed, and the session's state is lost; reset() it and prefill its "
                "tokens again");
  }
}

void Session::check_room(std::int64_t count) const {
  const std::int64_t held = state_->position() + (pending_ ? 1 : 0);
  const std::int64_t max_context = model_->options().max_context;
  if (count <= max_context - held) return;
  throw Error(ErrorKind::context_overflow, "the session holds " + std::to_string(held) + " tokens and cannot take " +
                                               std::to_string(count) + " more: its maximum context is " +
                                               std::to_string(max_context) + " (max_context of Model.load)");
}

void Session::between_chunks(std::int64_t done, std::int64_t total, const ProgressCallback& progress) const {
  if (progress) progress(done, total);
  if (done == total) return;
  if (cancelled_.load(std::memory_order_relaxed) || closing_.load(std::memory_order_relaxed)) {
    throw Error(ErrorKind::cancelled, "the call was cancelled; the session holds what was computed before");
  }
}

// Adds a chunk to the sequence by compute(), under the model's lock; without it when that throws.
template <class Compute>
void Session::extend(std::span<const std::int32_t> chunk, bool with_logits, Compute&& compute) {
  const std::size_t before = tokens_.size();
  tokens_.insert(tokens_.end(), chunk.begin(), chunk.end());
  logits_valid_ = logits_on_device_ = false;
  try {
    const std::scoped_lock lock(model_->compute_mutex());
    compute();
    model_->require_unchanged_files();  // results from other weights do not count
  } catch (...) {
    tokens_.resize(before);
    state_lost_ = !state_->is_whole_at(static_cast<std::int64_t>(before));
    throw;
  }
  logits_valid_ = with_logits;
}

void Session::run_chunk(std::span<const std::int32_t> chunk, bool final_chunk) {
  extend(chunk, final_chunk, [&] {
    const std::span<float> logits = final_chunk ? std::span<float>(writable_logits()) : std::span<float>();
    model_->backend().prefill(*state_, chunk, logits);
  });
  if (final_chunk) check_finite(*logits_);
}

void Session::run(std::span<const std::int32_t> ids, const ProgressCallback& progress) {
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t rows = std::min(total - begin, model_->backend().max_chunk_rows());
    ++revision_;
    if (begin > 0) model_->require_unchanged_files();
    run_chunk(ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows)), begin + rows == total);
    begin += rows;
    between_chunks(begin, total, progress);
  }
}

void Session::compute_pending() {
  if (!pending_) return;
  static_cast<void>(step(*pending_, std::nullopt));
  pending_.reset();
}

// Computes a token; returns the next one where a device picked it.
std::optional<std::int32_t> Session::step(std::int32_t token, const std::optional<DeviceChoice>& choice) {
  Backend& backend = model_->backend();
  const bool stay = backend.runs_ahead();
  StepRow row{.state = state_.get(), .token = token, .choice = choice, .logits = {}, .picked = std::nullopt};
  extend(std::span(&token, 1), true, [&] {
    if (!stay) row.logits = writable_logits();
    backend.step(std::span(&row, 1));
  });
  logits_on_device_ = stay;
  if (!stay) check_finite(*logits_);
  return row.picked;
}

void Session::prepare_call(std::span<const std::int32_t> ids) {
  cancelled_.store(false, std::memory_order_relaxed);
  model_->require_unchanged_files();
  check_usable();
  check_ids(ids);
  check_room(static_cast<std::int64_t>(ids.size()));
  compute_pending();
}

Logits Session::prefill(std::span<const std::int32_t> ids, const ProgressCallback& progress) {
  const Entry entry(*this);
  prepare_call(ids);
  run(ids, progress);
  return logits_;
}

Logits Session::decode(std::int32_t token) {
  const Entry entry(*this);
  prepare_call(std::span(&token, 1));
  ++revision_;
  static_cast<void>(step(token, std::nullopt));
  return fetched_logits();
}

std::uint64_t Session::begin_generation() {
  const Entry entry(*this);
  cancelled_.store(false, std::memory_order_relaxed);
  return revision_;
}

std::int32_t Session::sample(const TokenRequest& request, TokenMask mask, std::span<const float> logits) {
  const auto output_begin = std::min(static_cast<std::size_t>(request.output_begin), tokens_.size());
  return sampler_.sample({.logits = logits,
                          .seed = request.seed,
                          .position = static_cast<std::uint64_t>(state_->position()),
                          .output = std::span<const std::int32_t>(tokens_).subspan(output_begin),
                          .mask = mask},
                         request.sampling);
}

TokenChoice Session::next_token(const TokenRequest& request, TokenMask mask, std::uint64_t expected_revision) {
  const Entry entry(*this);
  request.sampling.validate();
  model_->require_unchanged_files();
  check_usable();
  if (revision_ != expected_revision) {
    throw Error(ErrorKind::invalid_argument, "the session was changed while a generation was in use; start it again");
  }
  if (!logits_valid_ && !pending_) {
    throw Error(ErrorKind::invalid_argument, "there are no logits to sample from; call prefill() or decode() first");
  }
  check_room(1);
  between_chunks(0, 1, {});
  const std::int64_t candidates = std::clamp<std::int64_t>(request.candidates, 1, model_->config().vocab_size);
  const bool on_device = model_->backend().runs_ahead();
  const std::optional<DeviceChoice> how = on_device ? device_choice(request, mask, candidates) : std::nullopt;
  std::optional<std::int32_t> picked;
  if (on_device && pending_) {
    picked = step(*pending_, how);
    pending_.reset();
  } else {
    compute_pending();
  }
  std::span<const float> logits;
  if (!picked || request.logprobs) {
    logits = std::span<const float>(*fetched_logits()).first(static_cast<std::size_t>(candidates));
  }
  TokenChoice choice;
  choice.token = picked ? *picked : sample(request, mask, logits);
  if (request.logprobs) choice.logprobs = logprobs_of(logits, choice.token, *request.logprobs);
  choice.stops = std::find(request.stops.begin(), request.stops.end(), choice.token) != request.stops.end();
  if (choice.stops) return choice;
  if (on_device && !picked) {  // let the device compute while the caller looks at the token
    const std::scoped_lock lock(model_->compute_mutex());
    const StepRow row{
        .state = state_.get(), .token = choice.token, .choice = how, .logits = {}, .picked = std::nullopt};
    model_->backend().begin_step(std::span(&row, 1));
  }
  pending_ = choice.token;
  ++revision_;
  return choice;
}

Scores Session::score(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                      const ProgressCallback& progress) {
  const Entry entry(*this);
  cancelled_.store(false, std::memory_order_relaxed);
  model_->require_same_process();
  check_ids(ids);
  const auto total = static_cast<std::int64_t>(ids.size());
  if (total < 2) throw Error(ErrorKind::invalid_argument, "scoring needs at least two token ids");
  if (targets.empty()) {
    targets = ids.subspan(1);
  } else {
    check_ids(targets);
    if (static_cast<std::int64_t>(targets.size()) != total - 1) {
      throw Error(ErrorKind::invalid_argument,
                  "scoring needs one target fewer than token ids: " + std::to_string(total - 1) + ", not " +
                      std::to_string(targets.size()));
    }
  }
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
    model_->require_unchanged_files();
    {
      const std::scoped_lock lock(model_->compute_mutex());
      backend.score(*state, ids.subspan(first, count), targets.subspan(first, count),
                    std::span(scores.log_probabilities).subspan(first, count),
                    std::span(scores.argmax).subspan(first, count));
    }
    model_->require_unchanged_files();
    const auto computed = std::span(scores.log_probabilities).subspan(first, count);
    const auto wrong = std::find_if(computed.begin(), computed.end(), [](float value) { return std::isnan(value); });
    if (wrong != computed.end()) {
      const auto until = first + static_cast<std::size_t>(wrong - computed.begin()) + 1;
      throw Error(ErrorKind::non_finite, describe_non_finite(ids.first(until), *state));
    }
    begin += rows;
    between_chunks(begin, total - 1, progress);
  }
  return scores;
}

void Session::reset() {
  const Entry entry(*this);
  state_->reset();
  tokens_.clear();
  pending_.reset();
  logits_valid_ = logits_on_device_ = false;
  state_lost_ = false;
  not_finite_.clear();
  ++revision_;
}

std::shared_ptr<Snapshot> Session::snapshot(bool with_pending) {
  const Entry entry(*this);
  check_usable();
  return std::make_shared<Snapshot>(model_, state_->clone(), tokens_, with_pending ? pending_ : std::nullopt,
                                    logits_valid_ ? fetched_logits() : nullptr);
}

void Session::restore(const Snapshot& snapshot) {
  const Entry entry(*this);
  if (!snapshot.belongs_to(*model_)) {
    throw Error(ErrorKind::invalid_argument,
                "the snapshot is from a session of another model; load_session() moves a session between models");
  }
  auto state = snapshot.state().clone();
  std::vector<std::int32_t> tokens = snapshot.tokens();
  logits_ = snapshot.logits();
  logits_valid_ = logits_ != nullptr;
  logits_on_device_ = false;
  state_ = std::move(state);
  tokens_ = std::move(tokens);
  pending_ = snapshot.pending();
  state_lost_ = false;
  not_finite_.clear();
  ++revision_;
}

void Session::close() {
  if (closed()) return;
  const Entry entry(*this, Use::closing);
  state_.reset();
  tokens_.clear();
  pending_.reset();
  logits_.reset();
  logits_valid_ = logits_on_device_ = false;
  model_.reset();
}

std::int64_t Session::position() const {
  const Reading reading(*this);
  return static_cast<std::int64_t>(tokens_.size()) + (pending_ ? 1 : 0);
}

std::vector<std::int32_t> Session::tokens() const {
  const Reading reading(*this);
  std::vector<std::int32_t> all = tokens_;
  if (pending_) all.push_back(*pending_);
  return all;
}

std::size_t Session::state_bytes() const {
  const Reading reading(*this);
  return state_->bytes();
}

Logits Session::logits() {
  const Reading reading(*this);
  return logits_valid_ ? fetched_logits() : nullptr;
}

}  // namespace lily
