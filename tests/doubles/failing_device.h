// doubles/failing_device.h -- a device that fails on demand, to test how its users take errors.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "device/forwarding_device.h"

namespace lily::doubles {

using namespace device;

// Passes everything on to another device, but after `fail_after(n)` the pass after the next n fails, and all later
// ones.
class FailingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  void fail_after(std::uint64_t passes) { passes_left_ = passes; }
  void recover() { passes_left_.reset(); }

  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override {
    if (!passes_left_.has_value()) return inner().submit(stages);
    if (*passes_left_ == 0) return std::make_unique<FailedTicket>();
    --*passes_left_;
    return inner().submit(stages);
  }

 private:
  class FailedTicket final : public Ticket {
   public:
    [[nodiscard]] bool done() override { return true; }
    PassResult wait() override { return {.gpu_seconds = 0.0, .error = "injected failure of a pass"}; }
  };

  std::optional<std::uint64_t> passes_left_;
};

}  // namespace lily::doubles
