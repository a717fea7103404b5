// device/metal/pass_state.h -- what a ticket waits for: the command buffers of one pass, until the last has ended.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "device/device.h"
#include "device/metal/command_error.h"

namespace lily::device::metal {

// Whether the device can still run passes; shared by its queue and the passes in flight.
class DeviceHealth {
 public:
  // Keeps the first reason.
  void lose(const std::string& reason);
  // Why nothing can run any more; nothing while all is well.
  [[nodiscard]] std::optional<std::string> lost() const;

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

// How one command buffer ended.
struct CommandOutcome {
  double gpu_seconds = 0.0;
  std::optional<CommandError> error;
};

// Every command buffer of a pass reports once, on a thread of Metal's; then all who wait go on. The first error counts.
class PassState {
 public:
  PassState(std::uint32_t command_buffers, std::shared_ptr<DeviceHealth> health);

  // Never throws: it is called where nobody could catch.
  void finish_one(const CommandOutcome& outcome) noexcept;
  // Ends the pass at once with an error, whatever has been reported.
  void fail(const std::string& reason);
  [[nodiscard]] bool done() const;
  [[nodiscard]] PassResult wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::uint32_t left_;
  PassResult result_;
  std::shared_ptr<DeviceHealth> health_;
};

class PassTicket final : public Ticket {
 public:
  explicit PassTicket(std::shared_ptr<const PassState> state) : state_(std::move(state)) {}
  [[nodiscard]] bool done() override { return state_->done(); }
  PassResult wait() override { return state_->wait(); }

 private:
  std::shared_ptr<const PassState> state_;
};

}  // namespace lily::device::metal
