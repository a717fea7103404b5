// device/forwarding_device.h -- a device that forwards everything to another one; derived classes override parts.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "device/device.h"

namespace lily::device {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] std::string name() const override { return inner_->name(); }
  [[nodiscard]] std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage,
                                                 std::string label) override {
    return inner_->allocate(size, storage, std::move(label));
  }
  [[nodiscard]] std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                             const CopyProgress& progress) override {
    return inner_->wrap(data, size, std::move(label), progress);
  }
  [[nodiscard]] bool copies_wrapped() const override { return inner_->copies_wrapped(); }
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override {
    return inner_->pipeline(kernel, constants);
  }
  [[nodiscard]] bool compiles_ahead() const override { return inner_->compiles_ahead(); }
  void compile(std::span<const PipelineRequest> requests, const CompileProgress& progress) override {
    inner_->compile(requests, progress);
  }
  [[nodiscard]] bool limits_pass_time() const override { return inner_->limits_pass_time(); }
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override {
    return inner_->submit(stages);
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return inner_->allocated_bytes(); }
  [[nodiscard]] std::uint64_t memory_limit() const override { return inner_->memory_limit(); }
  [[nodiscard]] std::string memory_limit_remedy(std::uint64_t bytes) const override {
    return inner_->memory_limit_remedy(bytes);
  }
  [[nodiscard]] bool has_tensor_gemm() override { return inner_->has_tensor_gemm(); }
  [[nodiscard]] bool has_wide_attention() const override { return inner_->has_wide_attention(); }

 protected:
  [[nodiscard]] Device& inner() const { return *inner_; }

 private:
  std::shared_ptr<Device> inner_;
};

}  // namespace lily::device
