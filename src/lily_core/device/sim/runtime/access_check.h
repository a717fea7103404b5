// sim/runtime/access_check.h -- the check of one memory access, called by the compiler's hooks.
#pragma once

#include <cstdint>

namespace lily_sim {

// An access of `bytes` bytes by the running thread. Atomics report one access of each kind they make.
void check_access(std::uintptr_t address, std::uint64_t bytes, bool write, bool atomic, std::uintptr_t place);

}  // namespace lily_sim
