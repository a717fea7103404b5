// device/metal/command_error.h -- a failed command buffer's error in words, with a remedy.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace lily::device::metal {

// Metal's own numbers, fixed by its interface.
enum class CommandErrorCode : std::int64_t {  // NOLINT(performance-enum-size): the type of Metal's numbers
  none = 0,
  internal = 1,
  timeout = 2,
  page_fault = 3,
  access_revoked = 4,
  innocent_victim = 5,  // of the driver, as impacting_interactivity
  not_permitted = 7,
  out_of_memory = 8,
  invalid_resource = 9,
  memoryless = 10,
  device_removed = 11,
  stack_overflow = 12,
  impacting_interactivity = 14,  // of the driver; known from its messages, in no header
};

struct CommandError {
  bool of_command_buffer = true;  // whether `code` is a CommandErrorCode
  std::int64_t code = 0;
  std::string description;
  std::string part;  // which part of the pass it was, as "part 2 of 3"
};

// The text of PassResult::error, and its kind.
[[nodiscard]] std::string describe(const CommandError& error);
[[nodiscard]] ErrorKind kind_of(const CommandError& error);

// After such an error no later pass can run on the device.
[[nodiscard]] bool loses_device(const CommandError& error);

}  // namespace lily::device::metal
