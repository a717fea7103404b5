// cuda/msl/barrier.h -- Metal's barriers. CUDA's order all memory, so the flags say nothing more.
#pragma once

#include "device/msl/synchronization.h"

namespace metal {

LILY_FN void threadgroup_barrier(mem_flags) { __syncthreads(); }
LILY_FN void simdgroup_barrier(mem_flags) { __syncwarp(); }

}  // namespace metal
