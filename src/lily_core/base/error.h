// base/error.h -- the one exception type of the core; the binding layer maps each kind to a Python class.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace lily {

enum class ErrorKind : std::uint8_t {
  checkpoint,        // a file or tensor of the checkpoint is wrong
  config,            // an option or a model dimension is wrong or unsupported
  invalid_argument,  // a caller's argument is wrong (token id out of range, empty prompt)
  context_overflow,  // the session would exceed its maximum context
  memory_limit,      // a planned allocation exceeds the memory limit
  closed,            // model or session used after close()
  busy,              // a second thread entered a session that is in use
  cancelled,         // the caller's cancel callback asked to stop
  backend,           // the device or backend failed or is not available
  non_finite,        // computed or stored values are NaN or infinite
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace lily
