// cpu/dispatch.h -- which instruction sets this build and this processor have, and the kernel table for one of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cpu/kernels.h"

namespace lily::cpu {

// Names of the kernel tables that can run on this processor, best first; the last is "portable".
[[nodiscard]] std::vector<std::string> available_isas();

// The table of that name; empty: the environment's LILY_CPU_ISA, or else the best one.
// Throws Error(config) naming the available ones when it cannot run here.
[[nodiscard]] const KernelTable& select_kernels(std::string_view name);

}  // namespace lily::cpu
