// sim/runtime/faults.cpp -- signal handlers that abandon the faulting threadgroup.
#include "runtime/faults.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with sigaction
#include <ucontext.h>

#include <array>
#include <cstdint>

#include "runtime/worker.h"

namespace lily_sim {
namespace {

constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP};

struct Handlers {
  std::array<struct sigaction, kSignals.size()> previous = {};
};

Handlers& handlers() {
  static Handlers instance;  // signal handlers belong to the process
  return instance;
}

struct Fault {
  int signal;
  std::uintptr_t address;
};
thread_local __attribute__((tls_model("initial-exec"))) Fault last_fault = {};

// Describes the fault by the buffer whose end or beginning is nearest.
void report_fault() {
  if (last_fault.signal == SIGILL || last_fault.signal == SIGTRAP) fail("undefined behaviour was trapped");
  const Threadgroup& threadgroup = *current_simdgroup->threadgroup;
  if (threadgroup.worker->on_stack(last_fault.address)) {
    fail("the thread's stack of %lu bytes is exhausted", static_cast<unsigned long>(kStackBytes));
  }
  const Launch& launch = *threadgroup.launch;
  const Binding* nearest = nullptr;
  std::uintptr_t distance = std::uintptr_t{1} << 24;
  for (u32 i = 0; i < launch.binding_count; ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(launch.bindings[i].memory->base);
    const std::uintptr_t end = base + launch.bindings[i].memory->size;
    const std::uintptr_t gap = last_fault.address >= end ? last_fault.address - end : base - last_fault.address;
    if (gap < distance) {
      distance = gap;
      nearest = &launch.bindings[i];
    }
  }
  if (nearest == nullptr) fail("invalid memory access, far from every buffer");
  const auto base = reinterpret_cast<std::intptr_t>(nearest->memory->base);
  fail("invalid memory access at offset %ld of buffer %u '%s', which has %lu bytes",
       static_cast<long>(static_cast<std::intptr_t>(last_fault.address) - base), nearest->index, nearest->memory->label,
       static_cast<unsigned long>(nearest->memory->size));
}

// The faulting thread is abandoned, so the report may use its stack from the top.
void continue_in_report(ucontext_t* context) {
  const Simdgroup& group = *current_simdgroup;
  const std::uintptr_t top = group.threadgroup->worker->stack_top(group.index * kSimdWidth + group.lane) / 64 * 64;
#if defined(__x86_64__)
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(report_fault);
  context->uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(top - 8);
#else
  context->uc_mcontext.pc = reinterpret_cast<std::uintptr_t>(report_fault);
  context->uc_mcontext.sp = top;
#endif
}

// Not a kernel's fault: the handler that was there before gets it.
void pass_on(int signal, siginfo_t* information, void* context) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != signal) continue;
    const struct sigaction& previous = handlers().previous[i];
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      previous.sa_sigaction(signal, information, context);
    } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
      sigaction(signal, &previous, nullptr);  // the instruction runs again, and the default takes it
    } else {
      previous.sa_handler(signal);
    }
  }
}

void on_fault(int signal, siginfo_t* information, void* context) {
  if (current_simdgroup == nullptr) {
    pass_on(signal, information, context);
    return;
  }
  last_fault = {signal, reinterpret_cast<std::uintptr_t>(information->si_addr)};
  continue_in_report(static_cast<ucontext_t*>(context));
}

}  // namespace

// Not std::call_once: it reaches for thread-local variables of the C++ library, which with this library's TLS model
// must lie in static storage, and in a process that has loaded other extensions first they no longer can.
void install_fault_handlers() {
  [[maybe_unused]] static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &handlers().previous[i]);
    return true;
  }();
}

struct SignalStack::State {
  std::array<char, 64 << 10> memory;
  stack_t previous;
};

SignalStack::SignalStack() : state_(std::make_unique<State>()) {
  stack_t stack = {};
  stack.ss_sp = state_->memory.data();
  stack.ss_size = state_->memory.size();
  sigaltstack(&stack, &state_->previous);
}

SignalStack::~SignalStack() { sigaltstack(&state_->previous, nullptr); }

}  // namespace lily_sim
