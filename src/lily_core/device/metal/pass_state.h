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
  DeviceHealth();
  // Keeps the first reason.
  void lose(const std::string& reason);
  // Why nothing can run any more; nothing while all is well.
  [[nodiscard]] std::optional<std::string> lost() const;
  // In a child of the process that opened the device, nothing that was in flight ever ends.
  [[nodiscard]] bool is_forked() const;

 private:
  std::int64_t process_id_;
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

// How one command buffer ended.
struct CommandOutcome {
  double gpu_seconds = 0.0;
  double gpu_end = 0.0;  // seconds of the system's clock; 0: unknown
  std::optional<CommandError> error;
};

// Seconds of command buffers that run one after the other. Whether the time that one spends waiting for the one before
// counts as its own is not documented; here it does not.
class GpuTimeline {
 public:
  [[nodiscard]] double seconds_of(const CommandOutcome& outcome) noexcept;

 private:
  std::mutex mutex_;
  double latest_end_ = 0.0;
};

// Every command buffer of a pass reports once, on a Metal thread; then all waiters continue. The first error counts.
class PassState {
 public:
  PassState(std::size_t command_buffers, std::shared_ptr<DeviceHealth> health);

  // Whether it was the last. Never throws: it is called where nobody could catch.
  bool finish_one(const CommandOutcome& outcome, double gpu_seconds) noexcept;
  // `count` command buffers will not report: they were not committed.
  void give_up(std::size_t count, const std::string& reason, ErrorKind kind = ErrorKind::backend) noexcept;
  // Ends the pass at once with an error, whatever has been reported.
  void fail(const std::string& reason);
  [[nodiscard]] bool done() const;
  [[nodiscard]] PassResult wait() const;

 private:
  bool end_locked(std::size_t count, std::string* error, ErrorKind kind) noexcept;

  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  std::size_t left_;
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
