// sim/msl/barrier.h -- Metal's barriers; each knows the line it stands in.
#pragma once

#include "device/msl/synchronization.h"
#include "runtime/lane.h"

#define LILY_SITE const char *file = __builtin_FILE(), uint line = __builtin_LINE()

namespace metal {

LILY_FN void threadgroup_barrier(mem_flags flags, LILY_SITE) {
  ::lily_sim::threadgroup_barrier(static_cast<uint>(flags), file, line);
}
LILY_FN void simdgroup_barrier(mem_flags flags, LILY_SITE) {
  ::lily_sim::simdgroup_barrier(static_cast<uint>(flags), file, line);
}

}  // namespace metal
