// device/metal/pipeline.h -- a compiled kernel with the values of its function constants.
#pragma once

#import <Metal/Metal.h>

#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/metal/source_bundle.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class MetalPipeline final : public Pipeline {
 public:
  // Throws Error(backend) with Metal's message.
  MetalPipeline(id<MTLDevice> device, id<MTLLibrary> library, const LibrarySource& source, const std::string& kernel,
                std::span<const FunctionConstant> constants);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return max_threads_; }
  [[nodiscard]] std::span<const SlotUse> slots() const override { return slots_; }
  [[nodiscard]] id<MTLComputePipelineState> metal() const { return state_; }

 private:
  std::string name_;
  std::vector<SlotUse> slots_;
  id<MTLComputePipelineState> state_;
  std::uint32_t max_threads_;
};

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
