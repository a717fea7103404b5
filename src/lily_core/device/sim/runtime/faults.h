// sim/runtime/faults.h -- turns a memory fault inside a kernel into an error of the launch.
#pragma once

#include <cstddef>
#include <memory>

namespace lily_sim {

// Installs the signal handlers once in the process. Faults outside kernels go to the handlers that were there before.
void install_fault_handlers();

// Gives the calling thread a stack of its own for signal handlers, for as long as the object lives.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lily_sim
