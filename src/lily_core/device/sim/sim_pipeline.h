// device/sim/sim_pipeline.h -- a translated kernel with the values of its function constants.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/sim/runtime/abi.h"

namespace lily::device::sim {

class SimPipeline final : public Pipeline {
 public:
  // Throws Error(backend) when a function constant that the kernel uses has no value.
  SimPipeline(const lily_sim::Entry& entry, std::span<const FunctionConstant> constants);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return entry_->max_threads; }
  [[nodiscard]] std::span<const SlotUse> slots() const override { return slots_; }

  [[nodiscard]] const lily_sim::Entry& entry() const { return *entry_; }
  [[nodiscard]] const std::array<std::int32_t, lily_sim::kFunctionConstants>& constants() const { return constants_; }
  // The argument struct's slot, null when the kernel takes none.
  [[nodiscard]] const lily_sim::Slot* bytes_slot() const { return bytes_slot_; }

 private:
  const lily_sim::Entry* entry_;
  std::string name_;
  std::vector<SlotUse> slots_;
  const lily_sim::Slot* bytes_slot_ = nullptr;
  std::array<std::int32_t, lily_sim::kFunctionConstants> constants_ = {};
};

}  // namespace lily::device::sim
