// device/metal/pass_state.cpp -- counts command buffers that have ended, and keeps the first error.
#include "device/metal/pass_state.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace lily::device::metal {

DeviceHealth::DeviceHealth() : process_id_(::getpid()) {}

bool DeviceHealth::is_forked() const { return ::getpid() != process_id_; }

void DeviceHealth::lose(const std::string& reason) {
  const std::scoped_lock lock(mutex_);
  if (!reason_.has_value()) reason_ = reason;
}

std::optional<std::string> DeviceHealth::lost() const {
  const std::scoped_lock lock(mutex_);
  return reason_;
}

double GpuTimeline::seconds_of(const CommandOutcome& outcome) noexcept {
  if (outcome.gpu_end <= 0.0) return outcome.gpu_seconds;
  const std::scoped_lock lock(mutex_);
  const double begin = std::max(outcome.gpu_end - outcome.gpu_seconds, latest_end_);
  latest_end_ = std::max(latest_end_, outcome.gpu_end);
  return std::max(0.0, outcome.gpu_end - begin);
}

PassState::PassState(std::size_t command_buffers, std::shared_ptr<DeviceHealth> health)
    : left_(command_buffers), health_(std::move(health)) {}

// `error` is null for none.
bool PassState::end_locked(std::size_t count, std::string* error, ErrorKind kind) noexcept {
  if (error != nullptr && result_.error.empty()) {
    result_.error = std::move(*error);
    result_.kind = kind;
  }
  const bool was_done = left_ == 0;
  left_ -= std::min(left_, count);
  if (left_ == 0) ended_.notify_all();
  return left_ == 0 && !was_done;
}

bool PassState::finish_one(const CommandOutcome& outcome, double gpu_seconds) noexcept {
  std::string text;
  ErrorKind kind = ErrorKind::backend;
  if (outcome.error.has_value()) {
    try {
      kind = kind_of(*outcome.error);
      text = describe(*outcome.error);
      if (loses_device(*outcome.error)) health_->lose(text);
    } catch (...) {
      // Only memory for the text can be missing; waiters must continue all the same.
    }
    if (text.empty()) text = "it failed";  // short enough to need no memory
  }
  const std::scoped_lock lock(mutex_);
  result_.gpu_seconds += gpu_seconds;
  return end_locked(1, outcome.error.has_value() ? &text : nullptr, kind);
}

void PassState::give_up(std::size_t count, const std::string& reason, ErrorKind kind) noexcept {
  std::string text;
  try {
    text = reason;
  } catch (...) {
    text = "it failed";
  }
  const std::scoped_lock lock(mutex_);
  end_locked(count, &text, kind);
}

void PassState::fail(const std::string& reason) {
  std::string text = reason;
  const std::scoped_lock lock(mutex_);
  end_locked(left_, &text, ErrorKind::backend);
}

bool PassState::done() const {
  const std::scoped_lock lock(mutex_);
  return left_ == 0;
}

PassResult PassState::wait() const {
  std::unique_lock lock(mutex_);
  if (left_ > 0 && health_->is_forked()) {
    return {.gpu_seconds = 0.0,
            .error = "the process was forked while the pass was in flight; load the model in the child",
            .kind = ErrorKind::backend};
  }
  ended_.wait(lock, [this] { return left_ == 0; });
  return result_;
}

}  // namespace lily::device::metal
