// device/metal/pass_state.cpp -- counts command buffers that have ended, and keeps the first error.
#include "device/metal/pass_state.h"

#include <utility>

namespace lily::device::metal {

void DeviceHealth::lose(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_.has_value()) reason_ = reason;
}

std::optional<std::string> DeviceHealth::lost() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

PassState::PassState(std::uint32_t command_buffers, std::shared_ptr<DeviceHealth> health)
    : left_(command_buffers), health_(std::move(health)) {}

void PassState::finish_one(const CommandOutcome& outcome) noexcept {
  try {
    std::string text;
    if (outcome.error.has_value()) {
      text = describe(*outcome.error);
      if (loses_device(*outcome.error)) health_->lose(text);
    }
    const std::lock_guard lock(mutex_);
    result_.gpu_seconds += outcome.gpu_seconds;
    if (result_.error.empty()) result_.error = std::move(text);
    if (left_ > 0) --left_;
  } catch (...) {
    // Only memory for the text can be missing; those who wait must go on all the same.
    const std::lock_guard lock(mutex_);
    if (result_.error.empty()) result_.error = "no memory";
    if (left_ > 0) --left_;
  }
  ended_.notify_all();
}

void PassState::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (result_.error.empty()) result_.error = reason;
    left_ = 0;
  }
  ended_.notify_all();
}

bool PassState::done() const {
  const std::lock_guard lock(mutex_);
  return left_ == 0;
}

PassResult PassState::wait() const {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return left_ == 0; });
  return result_;
}

}  // namespace lily::device::metal
