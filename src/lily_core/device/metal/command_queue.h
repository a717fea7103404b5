// device/metal/command_queue.h -- what submitting passes asks of a command queue and of the event that orders it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "device/device.h"
#include "device/metal/pass_commands.h"
#include "device/metal/pass_state.h"

namespace lily::device::metal {

// What one command buffer does.
struct CommandPart {
  std::span<const Stage> stages;
  std::string label;
  std::uint64_t after = 0;   // it starts when the event has reached this
  std::uint64_t number = 0;  // what it makes the event when it has run
};

// Called once when a command buffer has ended, on any thread. Must not throw.
using CommandEnd = std::function<void(const CommandOutcome&)>;

class CommandQueue {
 public:
  virtual ~CommandQueue() = default;
  [[nodiscard]] virtual EncoderLimits limits() const = 0;
  // Before the command buffers of a pass.
  virtual void prepare() = 0;
  // Encodes and commits. Returns why it could not, empty when it did; only then `ended` is called. What it throws, it
  // throws before committing.
  [[nodiscard]] virtual std::string commit(const CommandPart& part, CommandEnd ended) = 0;
  // The event reaches `number` at least, so that what waits for a command buffer that failed goes on.
  virtual void release(std::uint64_t number) noexcept = 0;
};

}  // namespace lily::device::metal
