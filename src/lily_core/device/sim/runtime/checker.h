// sim/runtime/checker.h -- the checks of memory accesses: real in the checked library, absent in the fast one.
#pragma once

#include "runtime/abi.h"

namespace lily_sim {

void checker_begin_stage(Launch* launches, u32 count, const RunOptions& options);
void checker_begin_launch(Launch* launch);  // before each threadgroup, on the one thread that runs
void checker_begin_threadgroup();
void checker_end_stage(Report& report);
void checker_release(Memory* memory);
void checker_load_lines(const char* path);
extern const bool kChecked;

}  // namespace lily_sim
