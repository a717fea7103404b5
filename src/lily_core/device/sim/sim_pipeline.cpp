// device/sim/sim_pipeline.cpp -- checks the function constants and lists the slots.
#include "device/sim/sim_pipeline.h"

#include "base/error.h"

namespace lily::device::sim {

SimPipeline::SimPipeline(const lily_sim::Entry& entry, std::span<const FunctionConstant> constants)
    : entry_(&entry), name_(entry.name) {
  std::uint32_t given = 0;
  for (const FunctionConstant& constant : constants) {
    if (constant.index >= lily_sim::kFunctionConstants) {
      throw Error(ErrorKind::backend,
                  name_ + ": function constant index " + std::to_string(constant.index) + " is out of range");
    }
    constants_[constant.index] = constant.value;
    given |= 1u << constant.index;
  }
  for (const lily_sim::Constant* used = entry.constants; used->name != nullptr; ++used) {
    if ((given >> used->index & 1u) == 0) {
      throw Error(ErrorKind::backend,
                  name_ + ": function constant " + std::to_string(used->index) + " (" + used->name + ") has no value");
    }
  }
  for (const lily_sim::Slot* slot = entry.slots; slot->name != nullptr; ++slot) {
    if (slot->kind == lily_sim::SlotKind::bytes) {
      bytes_slot_ = slot;
    } else {
      slots_.push_back({slot->index, slot->written});
    }
  }
}

}  // namespace lily::device::sim
