// device/cuda/kernel_compiler.h -- machine code of kernels: from the cache on disk, or compiled in the background.
#pragma once

#include <filesystem>
#include <future>
#include <memory>
#include <semaphore>
#include <span>
#include <string>

#include "device/cuda/cubin_cache.h"
#include "device/cuda/kernel_library.h"
#include "device/cuda/nvrtc.h"

namespace lily::device::cuda {

class KernelCompiler {
 public:
  // Empty folders: those that KernelLibrary and CubinCache choose. Throws Error(backend).
  KernelCompiler(std::filesystem::path library, std::filesystem::path cache, std::string architecture);

  [[nodiscard]] const KernelLibrary& library() const { return library_; }
  [[nodiscard]] const Nvrtc& nvrtc() const { return nvrtc_; }

  // Starts at once, as many at a time as there are processors. Throws Error(backend) for a missing constant; what the
  // compiler finds wrong is thrown by the future.
  [[nodiscard]] std::future<std::string> start(const KernelEntry& entry, std::span<const FunctionConstant> constants);

 private:
  [[nodiscard]] std::string make(const std::string& name, const std::string& source);

  KernelLibrary library_;
  CubinCache cache_;
  std::string architecture_;
  Nvrtc nvrtc_;
  std::counting_semaphore<> processors_;
};

}  // namespace lily::device::cuda
