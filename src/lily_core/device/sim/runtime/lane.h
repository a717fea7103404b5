// sim/runtime/lane.h -- the state of running simdgroups and threadgroups, and the rendezvous of a simdgroup's lanes.
//
// Every Metal thread is a fiber; all fibers of a threadgroup live on one OS thread. A lane runs until its next
// simdgroup operation or barrier, then hands over to the next lane that can run. No standard headers (see abi.h).
#pragma once

#include "runtime/abi.h"

namespace lily_sim {

class Worker;

enum Operation : u32 {
  op_sum = 1,
  op_product,
  op_max,
  op_min,
  op_and,
  op_or,
  op_xor,
  op_prefix,
  op_shuffle,
  op_ballot,
  op_matrix,
  op_tile,
  op_barrier
};

// Where a lane waits, for reports.
struct Site {
  const char* file;
  u32 line;
  u32 operation;
};

struct Threadgroup {
  const Launch* launch;
  Size3 position;
  u32 linear;  // unique over the launches of a stage
  u32 threads, simdgroups;
  u32 alive, waiting;  // threads not returned; of those, at the threadgroup barrier
  Site barrier;
  u32 ready_simdgroups;                 // mask of simdgroups with a lane that can run
  u32 threadgroup_epoch, device_epoch;  // count the barriers that order each kind of memory
  void* buffers[kBufferSlots];
  u8* argument_memory;  // [[threadgroup(0)]]
  Worker* worker;
};

struct alignas(64) Simdgroup {
  u32 lane;  // the one running
  u32 index;
  u32 alive, arrived, ready, at_barrier;  // masks of lanes
  u32 parity;                             // which of the exchange areas the current operation uses
  u32 threadgroup_epoch, device_epoch;    // count simdgroup barriers
  Site site;
  Threadgroup* threadgroup;
  void* stack_pointers[kSimdWidth];
  alignas(64) u8 exchange[2][kSimdWidth * 64];  // what the lanes bring to an operation
  alignas(64) u8 result[2][1024];
};

extern thread_local __attribute__((tls_model("initial-exec"))) Simdgroup* current_simdgroup;

const char* base_name(const char* path);  // for reports
void suspend_lane();                      // runs other lanes until this one is made ready
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void fail_divergent(const Simdgroup& group, const Site& site);
void threadgroup_barrier(u32 flags, const char* file, u32 line);
void simdgroup_barrier(u32 flags, const char* file, u32 line);
void* threadgroup_variable(const void* marker, u64 size, u64 alignment, const char* name);

constexpr u32 kAllLanes = 0xffffffffu;
constexpr u32 kFlagDevice = 1, kFlagThreadgroup = 2;  // the values of metal::mem_flags

// Brings the running lane to a simdgroup operation. True in the lane that arrives last: it does the work for all and
// then calls complete(). The others return when that is done.
inline __attribute__((always_inline)) bool arrive(Simdgroup& group, u32 operation, const char* file, u32 line) {
  if (__builtin_expect(group.alive != kAllLanes, 0)) fail_divergent(group, {file, line, operation});
  if (group.arrived == 0) {
    group.site = {file, line, operation};
  } else if (__builtin_expect(group.site.line != line || group.site.operation != operation || group.site.file != file,
                              0)) {
    fail_divergent(group, {file, line, operation});
  }
  group.arrived |= 1u << group.lane;
  if (group.arrived == kAllLanes) return true;
  suspend_lane();
  return false;
}

inline __attribute__((always_inline)) void complete(Simdgroup& group) {
  group.ready |= group.arrived & ~(1u << group.lane);
  group.threadgroup->ready_simdgroups |= 1u << group.index;
  group.arrived = 0;
  group.parity ^= 1;
}

}  // namespace lily_sim
