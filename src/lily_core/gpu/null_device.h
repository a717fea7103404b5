// gpu/null_device.h -- a device that computes nothing: passes can be planned and counted where there is no GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"

namespace lily::gpu {

// Whether buffers of the null device remember what the host writes; without it they never take memory.
enum class NullContents : std::uint8_t { kept, dropped };

class NullDevice final : public device::Device {
 public:
  explicit NullDevice(NullContents contents = NullContents::kept) : contents_(contents) {}

  [[nodiscard]] std::string name() const override { return "null"; }
  // Memory is reserved when contents() is first called.
  [[nodiscard]] std::shared_ptr<device::Buffer> allocate(std::uint64_t size, device::BufferStorage storage,
                                                         std::string label) override;
  [[nodiscard]] std::shared_ptr<device::Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                                     const CopyProgress& progress) override;
  // Any name is a kernel. With its constants, it is noted down.
  [[nodiscard]] const device::Pipeline& pipeline(const std::string& kernel,
                                                 std::span<const device::FunctionConstant> constants) override;
  [[nodiscard]] std::unique_ptr<device::Ticket> submit(std::span<const device::Stage> stages) override;
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return *allocated_; }
  // What was asked for, each once.
  [[nodiscard]] std::vector<device::PipelineRequest> requests() const;
  [[nodiscard]] bool has_tensor_gemm() override { return tensor_gemm_; }
  void set_tensor_gemm(bool has) { tensor_gemm_ = has; }
  // Bytes of the buffers alive now that wrap memory of the host.
  [[nodiscard]] std::uint64_t wrapped_bytes() const { return *wrapped_; }

 private:
  using Constants = std::vector<std::pair<std::uint32_t, std::int32_t>>;

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, Constants>, std::unique_ptr<device::Pipeline>> pipelines_;
  bool tensor_gemm_ = false;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::shared_ptr<std::atomic<std::uint64_t>> wrapped_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  NullContents contents_;
};

}  // namespace lily::gpu
