// device/metal/command_sink.h -- what encoding a pass asks of a compute command encoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "device/device.h"

namespace lily::device::metal {

class CommandSink {
 public:
  virtual ~CommandSink() = default;
  virtual void set_pipeline(const Pipeline& pipeline) = 0;
  virtual void set_buffer(std::uint32_t index, Buffer& buffer, std::uint64_t offset) = 0;
  // The buffer of a slot stays, the offset changes.
  virtual void set_offset(std::uint32_t index, std::uint64_t offset) = 0;
  virtual void set_bytes(std::uint32_t index, std::span<const std::byte> bytes) = 0;
  virtual void set_threadgroup_bytes(std::uint32_t bytes) = 0;
  virtual void dispatch(Size3 threadgroups, std::uint32_t threads) = 0;
  // All dispatches before are complete, and what they wrote is visible, before any after starts.
  virtual void barrier() = 0;
};

}  // namespace lily::device::metal
