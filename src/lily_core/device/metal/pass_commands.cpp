// device/metal/pass_commands.cpp -- checks dispatches and writes them to a sink.
#include "device/metal/pass_commands.h"

#include <array>
#include <cstdint>

namespace lily::device::metal {
namespace {

constexpr std::uint32_t kSlots = 32;
constexpr std::uint32_t kSimdWidth = 32;

std::string find_binding_fault(const BufferBinding& binding, const EncoderLimits& limits) {
  const std::string slot = "slot " + std::to_string(binding.index) + ": ";
  if (binding.index >= limits.buffer_slots) return slot + "there is no such slot";
  if (binding.buffer == nullptr) return slot + "no buffer";
  const std::uint64_t size = binding.buffer->size();
  if (binding.offset > size || binding.size > size - binding.offset) {
    return slot + "bytes [" + std::to_string(binding.offset) + ", +" + std::to_string(binding.size) +
           ") are outside \"" + binding.buffer->label() + "\" of " + std::to_string(size) + " bytes";
  }
  if (binding.offset % 4 != 0) return slot + "offset " + std::to_string(binding.offset) + " is not a multiple of 4";
  return "";
}

std::string find_dispatch_fault(const Dispatch& dispatch, const EncoderLimits& limits) {
  const std::uint32_t threads = dispatch.threads_per_threadgroup;
  if (threads == 0 || threads % kSimdWidth != 0) return std::to_string(threads) + " threads: not a multiple of 32";
  if (threads > dispatch.pipeline->max_threads_per_threadgroup()) {
    return std::to_string(threads) + " threads, more than the " +
           std::to_string(dispatch.pipeline->max_threads_per_threadgroup()) + " that this GPU gives the kernel";
  }
  if (dispatch.threadgroup_bytes > limits.threadgroup_bytes) {
    return std::to_string(dispatch.threadgroup_bytes) + " bytes of threadgroup memory are too many";
  }
  if (dispatch.bytes.size() > limits.argument_bytes) {
    return std::to_string(dispatch.bytes.size()) + " bytes of arguments are too many";
  }
  for (const BufferBinding& binding : dispatch.buffers) {
    const std::string fault = find_binding_fault(binding, limits);
    if (!fault.empty()) return fault;
  }
  return "";
}

bool has_threads(const Dispatch& dispatch) {
  const Size3 grid = dispatch.threadgroups;
  return grid.x > 0 && grid.y > 0 && grid.z > 0;
}

// Leaves out state that the encoder already has.
class StateFilter {
 public:
  explicit StateFilter(CommandSink& sink) : sink_(sink) {}

  void encode(const Dispatch& dispatch) {
    if (pipeline_ != dispatch.pipeline) {
      pipeline_ = dispatch.pipeline;
      sink_.set_pipeline(*pipeline_);
    }
    for (const BufferBinding& binding : dispatch.buffers) bind(binding);
    if (!dispatch.bytes.empty()) {
      bound_[dispatch.bytes_index] = {};
      sink_.set_bytes(dispatch.bytes_index, dispatch.bytes);
    }
    if (threadgroup_bytes_ != dispatch.threadgroup_bytes) {
      threadgroup_bytes_ = dispatch.threadgroup_bytes;
      sink_.set_threadgroup_bytes(threadgroup_bytes_);
    }
    sink_.dispatch(dispatch.threadgroups, dispatch.threads_per_threadgroup);
  }

 private:
  struct Bound {
    const Buffer* buffer = nullptr;
    std::uint64_t offset = 0;
  };

  void bind(const BufferBinding& binding) {
    Bound& bound = bound_[binding.index];
    if (bound.buffer != binding.buffer) {
      sink_.set_buffer(binding.index, *binding.buffer, binding.offset);
    } else if (bound.offset != binding.offset) {
      sink_.set_offset(binding.index, binding.offset);
    }
    bound = {binding.buffer, binding.offset};
  }

  CommandSink& sink_;
  const Pipeline* pipeline_ = nullptr;
  std::array<Bound, kSlots> bound_{};
  std::uint32_t threadgroup_bytes_ = 0;
};

}  // namespace

std::string find_fault(std::span<const Stage> stages, const EncoderLimits& limits) {
  for (const Stage& stage : stages) {
    for (const Dispatch& dispatch : stage.dispatches) {
      if (dispatch.pipeline == nullptr) return "a dispatch has no kernel";
      std::string fault = find_dispatch_fault(dispatch, limits);
      if (fault.empty() && !dispatch.bytes.empty() && dispatch.bytes_index >= limits.buffer_slots) {
        fault = "slot " + std::to_string(dispatch.bytes_index) + ": there is no such slot";
      }
      if (!fault.empty()) return "kernel " + dispatch.pipeline->name() + ", " + fault;
    }
  }
  return "";
}

void encode_stages(std::span<const Stage> stages, CommandSink& sink) {
  StateFilter filter(sink);
  bool needs_barrier = false;
  for (const Stage& stage : stages) {
    bool is_first = true;
    for (const Dispatch& dispatch : stage.dispatches) {
      if (!has_threads(dispatch)) continue;
      if (is_first && needs_barrier) sink.barrier();
      is_first = false;
      filter.encode(dispatch);
    }
    needs_barrier = needs_barrier || !is_first;
  }
}

}  // namespace lily::device::metal
