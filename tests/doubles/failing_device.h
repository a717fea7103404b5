// doubles/failing_device.h -- a device that fails on demand, to test how its users take errors.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "device/device.h"

namespace lily::doubles {

using namespace device;

// Passes everything on to another device, but after `fail_after(n)` the pass after the next n fails, and all later
// ones.
class FailingDevice final : public Device {
 public:
  explicit FailingDevice(Device& device) : device_(device) {}

  void fail_after(std::uint64_t passes) { passes_left_ = passes; }
  void recover() { passes_left_.reset(); }

  [[nodiscard]] std::string name() const override { return device_.name(); }
  [[nodiscard]] bool limits_pass_time() const override { return device_.limits_pass_time(); }
  [[nodiscard]] std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage,
                                                 std::string label) override {
    return device_.allocate(size, storage, std::move(label));
  }
  [[nodiscard]] std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                             const CopyProgress& progress) override {
    return device_.wrap(data, size, std::move(label), progress);
  }
  [[nodiscard]] bool copies_wrapped() const override { return device_.copies_wrapped(); }
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override {
    return device_.pipeline(kernel, constants);
  }
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override {
    if (!passes_left_.has_value()) return device_.submit(stages);
    if (*passes_left_ == 0) return std::make_unique<FailedTicket>();
    --*passes_left_;
    return device_.submit(stages);
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return device_.allocated_bytes(); }
  [[nodiscard]] std::uint64_t memory_limit() const override { return device_.memory_limit(); }
  [[nodiscard]] std::string memory_limit_remedy(std::uint64_t bytes) const override {
    return device_.memory_limit_remedy(bytes);
  }
  [[nodiscard]] bool has_tensor_gemm() override { return device_.has_tensor_gemm(); }
  [[nodiscard]] bool has_wide_attention() const override { return device_.has_wide_attention(); }

 private:
  class FailedTicket final : public Ticket {
   public:
    [[nodiscard]] bool done() override { return true; }
    PassResult wait() override { return {.gpu_seconds = 0.0, .error = "injected failure of a pass"}; }
  };

  Device& device_;
  std::optional<std::uint64_t> passes_left_;
};

}  // namespace lily::doubles
