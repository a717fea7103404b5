// device/sim/stage_checks.cpp -- refuses dispatches that Metal or the engine's own rules do not allow.
#include "device/sim/stage_checks.h"

#include <algorithm>

#include "device/sim/sim_buffer.h"
#include "device/sim/sim_pipeline.h"

namespace lily::device::sim {
namespace {

constexpr std::uint64_t kOffsetAlignment = 4;
constexpr std::size_t kMaxArgumentBytes = 256;

std::string range(const BufferBinding& binding) {
  return "bytes " + std::to_string(binding.offset) + " to " + std::to_string(binding.offset + binding.size) + " of '" +
         binding.buffer->label() + "'";
}

std::string check_grid(const Dispatch& dispatch, const SimPipeline& pipeline) {
  const std::uint32_t threads = dispatch.threads_per_threadgroup;
  if (threads == 0 || threads % lily_sim::kSimdWidth != 0) {
    return "the threadgroup has " + std::to_string(threads) + " threads, not a multiple of 32";
  }
  const std::uint32_t limit = std::min(pipeline.max_threads_per_threadgroup(), lily_sim::kMaxThreads);
  if (threads > limit) {
    return "the threadgroup has " + std::to_string(threads) + " threads; the kernel allows " + std::to_string(limit);
  }
  const Size3 grid = dispatch.threadgroups;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return "the grid is empty";
  if (grid.y > 65535 || grid.z > 65535) return "the grid has more than 65535 threadgroups in y or z; use x";
  if (std::uint64_t{grid.x} * grid.y * grid.z > 0xffffffffull) return "the grid has more than 2^32 threadgroups";
  if (pipeline.entry().takes_threadgroup_memory != (dispatch.threadgroup_bytes > 0)) {
    return pipeline.entry().takes_threadgroup_memory ? "the kernel needs threadgroup memory, none is given"
                                                     : "the kernel takes no threadgroup memory as an argument";
  }
  if (dispatch.threadgroup_bytes % 16 != 0) return "the size of threadgroup memory is not a multiple of 16";
  if (dispatch.threadgroup_bytes > lily_sim::kThreadgroupMemory) {
    return std::to_string(dispatch.threadgroup_bytes) + " bytes of threadgroup memory; Metal allows 32768";
  }
  return {};
}

std::string check_bytes(const Dispatch& dispatch, const SimPipeline& pipeline) {
  const lily_sim::Slot* slot = pipeline.bytes_slot();
  if (slot == nullptr) return dispatch.bytes.empty() ? "" : "the kernel takes no argument struct";
  if (dispatch.bytes.empty()) return "the argument struct in slot " + std::to_string(slot->index) + " is missing";
  if (dispatch.bytes_index != slot->index) {
    return "the argument struct is bound to slot " + std::to_string(dispatch.bytes_index) + ", the kernel has it in " +
           std::to_string(slot->index);
  }
  if (dispatch.bytes.size() != slot->size || slot->size > kMaxArgumentBytes) {
    return "the argument struct has " + std::to_string(dispatch.bytes.size()) + " bytes, the kernel's has " +
           std::to_string(slot->size);
  }
  return {};
}

std::string check_binding(const BufferBinding& binding, const SlotUse& slot) {
  const std::string place = "slot " + std::to_string(binding.index) + ": ";
  if (binding.buffer == nullptr) return place + "no buffer";
  const std::uint64_t size = binding.buffer->size();
  if (binding.offset > size || binding.size > size - binding.offset) {
    return place + range(binding) + ", which has only " + std::to_string(size);
  }
  if (binding.size == 0) return place + "an empty range of '" + binding.buffer->label() + "'";
  if (binding.offset % kOffsetAlignment != 0)
    return place + "offset " + std::to_string(binding.offset) + " is not a multiple of 4";
  if (binding.written && !slot.written) return place + "declared as written, but the kernel's pointer is const";
  if (binding.written && static_cast<SimBuffer*>(binding.buffer)->read_only()) {
    return place + "'" + binding.buffer->label() + "' is read-only memory of the host";
  }
  return {};
}

std::string check_bindings(const Dispatch& dispatch, const SimPipeline& pipeline) {
  for (const SlotUse& slot : pipeline.slots()) {
    const auto bound = std::count_if(dispatch.buffers.begin(), dispatch.buffers.end(),
                                     [&](const BufferBinding& binding) { return binding.index == slot.index; });
    if (bound != 1) return "slot " + std::to_string(slot.index) + " is bound " + std::to_string(bound) + " times";
  }
  for (const BufferBinding& binding : dispatch.buffers) {
    const auto slot = std::find_if(pipeline.slots().begin(), pipeline.slots().end(),
                                   [&](const SlotUse& use) { return use.index == binding.index; });
    if (slot == pipeline.slots().end()) return "the kernel has no buffer in slot " + std::to_string(binding.index);
    std::string problem = check_binding(binding, *slot);
    if (!problem.empty()) return problem;
  }
  return {};
}

bool conflict(const BufferBinding& a, const BufferBinding& b) {
  const bool overlap = a.offset < b.offset + b.size && b.offset < a.offset + a.size;
  return a.buffer == b.buffer && overlap && (a.written || b.written);
}

}  // namespace

std::string check_dispatch(const Dispatch& dispatch) {
  if (dispatch.pipeline == nullptr) return "a dispatch without a pipeline";
  const auto& pipeline = static_cast<const SimPipeline&>(*dispatch.pipeline);
  std::string problem = check_grid(dispatch, pipeline);
  if (problem.empty()) problem = check_bytes(dispatch, pipeline);
  if (problem.empty()) problem = check_bindings(dispatch, pipeline);
  return problem.empty() ? problem : pipeline.name() + ": " + problem;
}

std::string check_hazards(const Stage& stage) {
  for (std::size_t i = 0; i < stage.dispatches.size(); ++i) {
    for (std::size_t j = i + 1; j < stage.dispatches.size(); ++j) {
      for (const BufferBinding& a : stage.dispatches[i].buffers) {
        for (const BufferBinding& b : stage.dispatches[j].buffers) {
          if (!conflict(a, b)) continue;
          return "hazard in one stage: " + stage.dispatches[i].pipeline->name() + (a.written ? " writes " : " reads ") +
                 range(a) + ", " + stage.dispatches[j].pipeline->name() + (b.written ? " writes " : " reads ") +
                 range(b);
        }
      }
    }
  }
  return {};
}

}  // namespace lily::device::sim
