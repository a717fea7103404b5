// device/metal/queue.h -- Metal's command queue, with the shared event that orders its command buffers.
#pragma once

#import <Metal/Metal.h>

#include <cstdint>
#include <memory>
#include <string>

#include "device/metal/command_queue.h"
#include "device/metal/residency.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class MetalQueue final : public CommandQueue {
 public:
  // Throws Error(backend).
  MetalQueue(id<MTLDevice> device, id<MTLCommandQueue> queue, std::shared_ptr<Residency> residency);

  [[nodiscard]] EncoderLimits limits() const override { return limits_; }
  void prepare() override { residency_->prepare(); }
  [[nodiscard]] std::string commit(const CommandPart& part, CommandEnd ended) override;
  void release(std::uint64_t number) noexcept override;

 private:
  id<MTLCommandQueue> queue_;
  id<MTLSharedEvent> event_;  // the number of the latest command buffer that has ended
  EncoderLimits limits_;
  std::shared_ptr<Residency> residency_;
};

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
