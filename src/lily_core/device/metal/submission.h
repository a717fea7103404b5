// device/metal/submission.h -- runs passes on a command queue, one after the other.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "device/device.h"
#include "device/metal/command_split.h"
#include "device/metal/pass_commands.h"
#include "device/metal/pass_state.h"
#include "device/metal/residency.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class Submission {
 public:
  // Throws Error(backend).
  Submission(id<MTLDevice> device, id<MTLCommandQueue> queue, std::shared_ptr<Residency> residency);
  // Waits for what was submitted: command buffers do not keep their buffers alive.
  ~Submission();
  Submission(const Submission&) = delete;
  Submission& operator=(const Submission&) = delete;

  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages);

 private:
  struct Part {
    std::span<const Stage> stages;
    std::string label;
  };
  // Why the part could not be committed; empty: it was.
  [[nodiscard]] std::string commit(const Part& part, const std::shared_ptr<PassState>& pass,
                                   const CommandSplit::Shape& shape);

  id<MTLCommandQueue> queue_;
  id<MTLSharedEvent> event_;  // counts command buffers that have ended
  EncoderLimits limits_;
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<DeviceHealth> health_ = std::make_shared<DeviceHealth>();
  std::shared_ptr<CommandSplit> split_ = std::make_shared<CommandSplit>();

  std::mutex mutex_;
  std::uint64_t committed_ = 0;  // command buffers
  std::shared_ptr<PassState> latest_;
};

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
