// device/cuda/cuda_pipeline.cpp -- loads machine code.
#include "device/cuda/cuda_pipeline.h"

#include <utility>

namespace lily::device::cuda {

CudaPipeline::CudaPipeline(std::shared_ptr<const Context> context, const KernelEntry& entry,
                           std::future<std::string> cubin)
    : context_(std::move(context)), entry_(entry), cubin_(cubin.share()) {
  for (const KernelSlot& slot : entry.slots) {
    if (slot.bytes == 0) slots_.push_back({.index = slot.index, .written = slot.written});
  }
}

CudaPipeline::~CudaPipeline() {
  if (module_ == nullptr) return;
  const Context::Use use(*context_, std::nothrow);
  context_->driver().unload_module(module_);
}

FunctionHandle* CudaPipeline::function() const {
  if (function_ != nullptr) return function_;
  const std::string& cubin = cubin_.get();
  const Driver& driver = context_->driver();
  if (module_ == nullptr) {
    driver.check(driver.load_module(&module_, cubin.data()),
                 "loading kernel " + name() + " (a newer driver may be needed than for the NVRTC that compiled it)");
  }
  driver.check(driver.get_function(&function_, module_, name().c_str()), "finding kernel " + name());
  return function_;
}

}  // namespace lily::device::cuda
