// device/metal/metal_device.h -- Apple's GPU as a device.
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/metal/compiler.h"
#include "device/metal/memory_budget.h"
#include "device/metal/once_map.h"
#include "device/metal/pipeline.h"
#include "device/metal/residency.h"
#include "device/metal/source_bundle.h"
#include "device/metal/submission.h"
#include "device/metal/tensor_verdict.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class MetalDevice final : public Device {
 public:
  // Throws Error(backend).
  explicit MetalDevice(id<MTLDevice> device);
  ~MetalDevice() override = default;
  MetalDevice(const MetalDevice&) = delete;
  MetalDevice& operator=(const MetalDevice&) = delete;

  [[nodiscard]] std::string name() const override;
  [[nodiscard]] std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage, std::string label) override;
  [[nodiscard]] std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                             const CopyProgress& progress) override;
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override;
  [[nodiscard]] bool compiles_ahead() const override { return true; }
  void compile(std::span<const PipelineRequest> requests, const CompileProgress& progress) override;
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override;
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return budget_->allocated(); }
  [[nodiscard]] std::uint64_t memory_limit() const override { return budget_->limits().working_set; }
  [[nodiscard]] std::string memory_limit_remedy(std::uint64_t bytes) const override {
    return wired_limit_remedy(bytes, budget_->limits().machine);
  }
  [[nodiscard]] bool has_tensor_gemm() override { return tensor_verdict().enabled; }

  // Decided when it is first asked for.
  [[nodiscard]] const TensorVerdict& tensor_verdict();
  [[nodiscard]] const SourceBundle& sources() const { return sources_; }
  // Compiles all plain libraries: what the compiler says of those that it rejects.
  [[nodiscard]] std::vector<std::string> rejected_sources();

 private:
  void run_first_commands();

  id<MTLDevice> device_;
  id<MTLCommandQueue> queue_;
  SourceBundle sources_;
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<Residency> residency_;
  Compiler compiler_;

  OnceMap<MetalPipeline> pipelines_;
  std::once_flag tensor_once_;
  TensorVerdict tensor_verdict_;
  Submission submission_;  // last, so that it goes first: passes in flight use all of the above
};

// The GPU of this machine, nil when the process sees none.
[[nodiscard]] id<MTLDevice> _Nullable find_gpu();
// What is missing for Lily, empty for nothing.
[[nodiscard]] std::string missing_in(id<MTLDevice> device);

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
