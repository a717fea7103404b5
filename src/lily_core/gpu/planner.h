// gpu/planner.h -- turns a recorded pass into stages: a barrier only where a kernel needs what an earlier one did (D3).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/arena.h"
#include "gpu/pass.h"

namespace lily::gpu {

// The stage of every operation, from 0. Two operations that touch the same bytes, one of them writing, are in
// different stages and in program order; each operation is in the first stage that allows this. Host work has a stage
// of its own that everything recorded before precedes and everything after follows.
struct Schedule {
  std::vector<std::uint32_t> stage_of;
  std::uint32_t stages = 0;
};

// Not concurrent: every operation has its own stage, in program order.
[[nodiscard]] Schedule schedule(const Pass& pass, bool concurrent);

struct PassReport {
  std::uint64_t kernels = 0;
  std::uint64_t stages = 0;    // of kernels
  std::uint64_t barriers = 0;  // between the stages of one submission
  std::uint64_t waits = 0;     // times that the host waits for the device, the end of the pass included
  std::array<std::uint64_t, kMemoryKinds> bytes_read{};
  std::array<std::uint64_t, kMemoryKinds> bytes_written{};
  std::uint64_t scratch_bytes = 0;
  std::uint64_t scratch_bytes_unshared = 0;  // if no memory were used twice
};

// Stages that are submitted together, then work of the host, if any.
struct Submission {
  std::vector<device::Stage> stages;
  std::function<void()> then;
};

struct PlannedPass {
  std::vector<Submission> submissions;
  PassReport report;
  std::shared_ptr<device::Buffer> scratch;  // what the stages name; null when they need none
};

[[nodiscard]] PlannedPass plan_pass(const Pass& pass, Arena& arena, bool concurrent);

}  // namespace lily::gpu
