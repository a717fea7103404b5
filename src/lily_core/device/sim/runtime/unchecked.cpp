// sim/runtime/unchecked.cpp -- the fast library has no checks of single accesses.
#include "runtime/checker.h"

namespace lily_sim {

const bool kChecked = false;

void checker_begin_stage(Launch* /*launches*/, u32 /*count*/, const RunOptions& /*options*/) {}
void checker_begin_launch(Launch* /*launch*/) {}
void checker_begin_threadgroup() {}
void checker_end_stage(Report& /*report*/) {}
void checker_release(Memory* /*memory*/) {}
void checker_load_lines(const char* /*path*/) {}

}  // namespace lily_sim
