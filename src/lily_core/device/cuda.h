// device/cuda.h -- runs the Metal kernels on an NVIDIA GPU, translated to CUDA C++ and compiled for the GPU at hand.
#pragma once

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace lily::device {

namespace cuda {
class Context;
class CudaPipeline;
class GraphCache;
class HostTransfer;
class KernelCompiler;
class LaunchList;
struct StreamHandle;
struct SharedFate;
}  // namespace cuda

struct CudaOptions {
  std::filesystem::path library;  // folder of translated kernels; empty: those that ship with Lily
  std::filesystem::path cache;    // folder of compiled kernels; empty: the user's cache folder
  bool synchronous = false;       // one kernel at a time, so that an error names the kernel
};

class CudaDevice final : public Device {
 public:
  // Throws Error(backend) when there is no driver, GPU, compiler or kernel.
  explicit CudaDevice(CudaOptions options);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage, std::string label) override;
  // Copies the memory to the GPU.
  [[nodiscard]] std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                             const CopyProgress& progress) override;
  [[nodiscard]] bool copies_wrapped() const override { return true; }
  // Compiles in the background: what the compiler finds wrong is the error of the first pass with the kernel.
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override;
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override;
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return *allocated_; }
  [[nodiscard]] bool has_wide_attention() const override { return true; }

  [[nodiscard]] std::vector<std::string> kernel_names() const;

 private:
  void launch_one_by_one(cuda::LaunchList& list);
  [[nodiscard]] std::unique_ptr<Ticket> start(std::span<const Stage> stages);

  CudaOptions options_;
  std::mutex mutex_;  // one submission at a time
  std::shared_ptr<const cuda::Context> context_;
  std::shared_ptr<cuda::HostTransfer> transfer_;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_;
  std::shared_ptr<cuda::SharedFate> fate_;
  std::unique_ptr<cuda::KernelCompiler> compiler_;
  std::unordered_map<std::string, std::unique_ptr<cuda::CudaPipeline>> pipelines_;
  std::unique_ptr<cuda::GraphCache> graphs_;
  cuda::StreamHandle* stream_ = nullptr;
};

}  // namespace lily::device
