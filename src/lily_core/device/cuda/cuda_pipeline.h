// device/cuda/cuda_pipeline.h -- a kernel with its function constants, compiled in the background, loaded when needed.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/driver.h"
#include "device/cuda/kernel_library.h"
#include "device/device.h"

namespace lily::device::cuda {

class CudaPipeline final : public Pipeline {
 public:
  CudaPipeline(std::shared_ptr<const Context> context, const KernelEntry& entry, std::future<std::string> cubin);
  ~CudaPipeline() override;
  CudaPipeline(const CudaPipeline&) = delete;
  CudaPipeline& operator=(const CudaPipeline&) = delete;

  [[nodiscard]] const std::string& name() const override { return entry_.name; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return entry_.max_threads; }
  [[nodiscard]] std::span<const SlotUse> slots() const override { return slots_; }

  [[nodiscard]] const KernelEntry& entry() const { return entry_; }
  // Waits for the compiler and loads the code; one thread at a time, with the context in use. Throws Error(backend).
  [[nodiscard]] FunctionHandle* function() const;

 private:
  std::shared_ptr<const Context> context_;
  const KernelEntry& entry_;
  std::vector<SlotUse> slots_;
  std::shared_future<std::string> cubin_;
  // What function() has loaded.
  mutable ModuleHandle* module_ = nullptr;
  mutable FunctionHandle* function_ = nullptr;
};

}  // namespace lily::device::cuda
