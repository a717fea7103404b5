// device/metal/pass_commands.h -- a planned pass as commands of an encoder: state set where it changes, barriers
// between stages.
#pragma once

#include <span>
#include <string>

#include "device/device.h"
#include "device/metal/command_sink.h"

namespace lily::device::metal {

struct EncoderLimits {
  std::uint32_t buffer_slots = 31;
  std::uint32_t argument_bytes = 4096;      // of setBytes
  std::uint32_t threadgroup_bytes = 32768;  // of threadgroup memory
};

// The first thing in the stages that Metal would not accept: it checks little itself and would then access stray
// memory. Empty: nothing.
[[nodiscard]] std::string find_fault(std::span<const Stage> stages, const EncoderLimits& limits);

// For a fresh encoder. Dispatches without threads are left out.
void encode_stages(std::span<const Stage> stages, CommandSink& sink);

}  // namespace lily::device::metal
