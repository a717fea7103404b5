// doubles/rehearsed_device.h -- the Metal device's way of submitting, waiting and failing, on another device.
//
// Everything above Metal's own calls is the same code: command buffers in a chain of events, passes in parts, the
// budget, pipelines ahead of time. Command buffers run on a thread and fail on demand, so that all of it can be tested,
// and what sessions make of errors, where there is no Mac.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/forwarding_device.h"
#include "device/metal/command_error.h"
#include "device/metal/memory_budget.h"
#include "device/metal/submission.h"

namespace lily::device::metal {

class RehearsedQueue;

class RehearsedDevice final : public ForwardingDevice {
 public:
  RehearsedDevice(std::shared_ptr<Device> inner, MemoryLimits limits);
  ~RehearsedDevice() override;
  RehearsedDevice(const RehearsedDevice&) = delete;
  RehearsedDevice& operator=(const RehearsedDevice&) = delete;

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

  // The command buffer after the next `count` ends with this error instead of running; `lasting`: and all after it.
  void fail_after(std::uint64_t count, CommandError error, bool lasting);
  void recover();
  // Pipelines made ahead, and those that were first asked for afterwards.
  [[nodiscard]] std::size_t compiled_ahead() const;
  [[nodiscard]] std::vector<std::string> compiled_late() const;

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::shared_ptr<RehearsedQueue> queue_;
  std::thread runner_;
  std::unique_ptr<Submission> submission_;

  mutable std::mutex mutex_;
  std::set<std::string> ahead_;
  std::set<std::string> late_;
};

}  // namespace lily::device::metal
