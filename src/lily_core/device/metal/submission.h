// device/metal/submission.h -- runs passes on a command queue, one after the other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/metal/command_queue.h"
#include "device/metal/command_split.h"
#include "device/metal/pass_state.h"

namespace lily::device::metal {

class Submission {
 public:
  explicit Submission(std::shared_ptr<CommandQueue> queue) : queue_(std::move(queue)) {}
  // Waits for what was submitted: command buffers do not keep their buffers alive.
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages);

 private:
  // Why the pass cannot be started at all; empty: it can.
  [[nodiscard]] std::string find_obstacle(std::span<const Stage> stages) const;
  void commit_parts(std::span<const Stage> stages, std::size_t parts, const std::shared_ptr<PassState>& pass);
  // As CommandQueue::commit.
  [[nodiscard]] std::string commit(std::span<const Stage> stages, std::string label, const CommandSplit::Shape& shape,
                                   const std::shared_ptr<PassState>& pass);

  std::shared_ptr<CommandQueue> queue_;
  std::shared_ptr<DeviceHealth> health_ = std::make_shared<DeviceHealth>();
  std::shared_ptr<CommandSplit> split_ = std::make_shared<CommandSplit>();
  std::shared_ptr<GpuTimeline> timeline_ = std::make_shared<GpuTimeline>();

  std::mutex mutex_;
  std::uint64_t committed_ = 0;  // command buffers
  std::vector<std::shared_ptr<PassState>> in_flight_;
};

}  // namespace lily::device::metal
