// device/metal/command_error.cpp -- names of Metal's command buffer errors, and their remedies.
#include "device/metal/command_error.h"

namespace lily::device::metal {
namespace {

constexpr const char* kShorterPasses =
    "lower the option pass_seconds (0.1, say) or prefill_chunk, so that each pass is shorter";
constexpr const char* kLoadAgain = "the model must be loaded again";

// Drivers put their own name of the error into the description, whatever the code.
CommandErrorCode code_of(const CommandError& error) {
  const auto says = [&](const char* name) { return error.description.find(name) != std::string::npos; };
  if (says("ImpactingInteractivity")) return CommandErrorCode::impacting_interactivity;
  if (says("CallbackErrorOutOfMemory")) return CommandErrorCode::out_of_memory;
  if (says("CallbackErrorTimeout") || says("CallbackErrorHang")) return CommandErrorCode::timeout;
  if (says("CallbackErrorPageFault")) return CommandErrorCode::page_fault;
  if (says("CallbackErrorSubmissionsIgnored")) return CommandErrorCode::access_revoked;
  if (says("CallbackErrorInnocentVictim")) return CommandErrorCode::innocent_victim;
  return error.of_command_buffer ? static_cast<CommandErrorCode>(error.code) : CommandErrorCode::internal;
}

std::string meaning(CommandErrorCode code) {
  switch (code) {
    case CommandErrorCode::timeout:
      return std::string("the system ended it because it ran too long; ") + kShorterPasses;
    case CommandErrorCode::impacting_interactivity:
      return std::string("the system ended it because it kept the display waiting; ") + kShorterPasses;
    case CommandErrorCode::out_of_memory:
      return "the GPU has no memory left for it; close other programs, lower max_context or prefill_chunk, or raise "
             "the system's limit with `sudo sysctl iogpu.wired_limit_mb=...`";
    case CommandErrorCode::page_fault:
      return "a kernel used memory outside its buffers; please report this with the output of `lily verify`";
    case CommandErrorCode::access_revoked:
      return "the system has withdrawn the GPU from this process after earlier errors; restart the process";
    case CommandErrorCode::innocent_victim:
      return "the system reset the GPU because of other work on it; try again";
    case CommandErrorCode::not_permitted:
      return "the process may not use the GPU now (on a Mac: in the background or without a login session)";
    case CommandErrorCode::invalid_resource:
      return "a buffer was freed or not resident; please report this";
    case CommandErrorCode::device_removed:
      return std::string("the GPU is gone; ") + kLoadAgain;
    case CommandErrorCode::stack_overflow:
      return "a kernel ran out of stack; please report this";
    case CommandErrorCode::none:
    case CommandErrorCode::internal:
    case CommandErrorCode::memoryless:
      break;
  }
  return "the GPU or its driver failed";
}

}  // namespace

bool loses_device(const CommandError& error) {
  const CommandErrorCode code = code_of(error);
  return code == CommandErrorCode::access_revoked || code == CommandErrorCode::device_removed;
}

ErrorKind kind_of(const CommandError& error) {
  return code_of(error) == CommandErrorCode::out_of_memory ? ErrorKind::memory_limit : ErrorKind::backend;
}

std::string describe(const CommandError& error) {
  std::string text = meaning(code_of(error));
  text += " (Metal: ";
  text += error.description.empty() ? "no description" : error.description;
  text += ", code " + std::to_string(error.code);
  return text + (error.part.empty() ? "" : ", " + error.part) + ")";
}

}  // namespace lily::device::metal
