// gpu/decode_steps.h -- decode steps: two passes and two token slots in flight (D2).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/backend.h"
#include "device/device.h"
#include "gpu/decode_pass.h"
#include "gpu/pass_runner.h"
#include "gpu/planner.h"
#include "gpu/session_state.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

// A decode step in flight: reads copy `index` of the state and writes the other.
struct Step {
  std::optional<std::int32_t> token;  // nothing while only the device knows it
  std::uint32_t index = 0;
  std::int64_t position = 0;
  std::optional<DeviceChoice> choice;
  std::shared_ptr<const PlannedPass> pass;
  std::vector<std::shared_ptr<device::Buffer>> memory;  // alive until the ticket is done
  std::unique_ptr<device::Ticket> ticket;
};

// A planned pass of a decode step, and what it was planned for.
struct StepPlan {
  std::vector<const void*> memory;  // what the plan names
  std::uint32_t capacity = 0;       // of the caches: a grown one may lie where an older one was
  std::uint64_t options_revision = 0;
  AttentionSplit split;
  std::optional<DeviceChoice> choice;
  std::shared_ptr<const PlannedPass> pass;
};

// The steps of one sequence: at most two, the oldest first, and the second does not know its token until the first is
// done.
class StepsInFlight {
 public:
  std::deque<Step> steps;
  std::array<StepPlan, 2> plans;  // one for each direction between the two copies of the state

  // Abandons all steps, which belong to `state`. They still run: wait_for_abandoned() before the host writes a slot.
  void abandon(GpuSessionState& state);
  void wait_for_abandoned();
  void give_up(GpuSessionState& state) {
    abandon(state);
    wait_for_abandoned();
  }

 private:
  std::vector<Step> abandoned_;
};

// Submits and completes the steps of all sequences of a model.
class DecodeSteps {
 public:
  DecodeSteps(PassRunner& runner, const ModelConfig& config, const DeviceWeights& weights, std::int64_t max_context)
      : runner_(runner), config_(config), weights_(weights), max_context_(max_context) {}

  // As Backend says, for one row.
  void begin(const StepRow& row);
  void step(StepRow& row);

 private:
  void submit(GpuSessionState& state, std::optional<std::int32_t> token, std::uint32_t index, std::int64_t position,
              const std::optional<DeviceChoice>& choice);
  [[nodiscard]] std::shared_ptr<const PlannedPass> plan(GpuSessionState& state, std::uint32_t index,
                                                        std::int64_t position,
                                                        const std::optional<DeviceChoice>& choice);
  void finish(GpuSessionState& state);

  PassRunner& runner_;
  const ModelConfig& config_;
  const DeviceWeights& weights_;
  std::int64_t max_context_;
};

}  // namespace lily::gpu
