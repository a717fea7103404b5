// gpu/pass_runner.h -- plans and runs the passes of one model on its device, and counts them.
#pragma once

#include <cstdint>
#include <memory>

#include "base/gpu_options.h"
#include "device/device.h"
#include "gpu/arena.h"
#include "gpu/planner.h"
#include "gpu/session_state.h"

namespace lily::gpu {

// Counts of the passes so far.
struct BackendCounters {
  std::uint64_t submissions = 0;
  std::uint64_t waits = 0;
  double prefill_seconds = 0.0;  // on the device
  double decode_seconds = 0.0;
  PassReport prefill;  // of the latest chunk
  PassReport decode;   // of the latest step
};

class PassRunner {
 public:
  PassRunner(std::shared_ptr<device::Device> device, const Options& options)
      : device_(std::move(device)), options_(options), arena_(*device_) {}

  [[nodiscard]] device::Device& device() { return *device_; }
  [[nodiscard]] bool copies_wrapped() const { return device_->copies_wrapped(); }
  [[nodiscard]] const std::shared_ptr<device::Device>& shared_device() const { return device_; }
  [[nodiscard]] const Options& options() const { return options_; }
  // Incremented with each change of the options, after which passes are planned anew.
  [[nodiscard]] std::uint64_t options_revision() const { return options_revision_; }
  void set_options(const Options& options);
  [[nodiscard]] BackendCounters& counters() { return counters_; }
  // The scratch memory that planned passes name; null while none needs any.
  [[nodiscard]] const std::shared_ptr<device::Buffer>& scratch() const { return arena_.buffer(); }

  [[nodiscard]] PlannedPass plan(const Pass& pass) { return plan_pass(pass, arena_, options_.concurrent_stages); }
  // Submits, waits and does the host's work; returns the seconds on the device. Throws Error(backend).
  double run(const PlannedPass& pass);
  // After a failure the state has the caches from before.
  void move_caches(GpuSessionState& state, const CacheMove& move);

 private:
  std::shared_ptr<device::Device> device_;
  Options options_;
  std::uint64_t options_revision_ = 0;
  Arena arena_;
  BackendCounters counters_;
};

}  // namespace lily::gpu
