// sim/msl/launch_arguments.h -- how a running kernel finds its arguments: buffers, positions, function constants and
// threadgroup memory.
#pragma once

#include "device/msl/position.h"
#include "runtime/lane.h"

namespace lily_sim {

template <class T>
LILY_FN T* buffer_argument(u32 index) {
  return static_cast<T*>(current_simdgroup->threadgroup->buffers[index]);
}
template <class T>
LILY_FN T* threadgroup_argument() {
  return reinterpret_cast<T*>(current_simdgroup->threadgroup->argument_memory);
}

// A function constant: converts to the value given for the pipeline.
template <class T, u32 INDEX>
struct FunctionConstant {
  LILY_FN operator T() const { return static_cast<T>(current_simdgroup->threadgroup->launch->constants[INDEX]); }
};

LILY_FN u32 thread_index_in_threadgroup() { return current_simdgroup->index * kSimdWidth + current_simdgroup->lane; }
LILY_FN u32 thread_index_in_simdgroup() { return current_simdgroup->lane; }
LILY_FN u32 simdgroup_index_in_threadgroup() { return current_simdgroup->index; }
LILY_FN u32 simdgroups_per_threadgroup() { return current_simdgroup->threadgroup->simdgroups; }
LILY_FN u32 threads_per_simdgroup() { return kSimdWidth; }
LILY_FN Size3 threadgroup_position_in_grid() { return current_simdgroup->threadgroup->position; }
LILY_FN Size3 threadgroups_per_grid() { return current_simdgroup->threadgroup->launch->threadgroups; }
LILY_FN Size3 threads_per_threadgroup() { return {current_simdgroup->threadgroup->threads, 1, 1}; }
LILY_FN Size3 thread_position_in_threadgroup() { return {thread_index_in_threadgroup(), 0, 0}; }
LILY_FN Size3 thread_position_in_grid() {
  const Threadgroup& group = *current_simdgroup->threadgroup;
  return {group.position.x * group.threads + thread_index_in_threadgroup(), group.position.y, group.position.z};
}
LILY_FN Size3 threads_per_grid() {
  const Threadgroup& group = *current_simdgroup->threadgroup;
  const Size3 grid = group.launch->threadgroups;
  return {grid.x * group.threads, grid.y, grid.z};
}

using lily_device::position;

}  // namespace lily_sim

// A variable in threadgroup memory: a reference to the threadgroup's copy, found by the address of a marker.
#define LILY_UNWRAP(...) __VA_ARGS__
#define LILY_THREADGROUP_VARIABLE(NAME, DIMENSIONS, ...)                              \
  typedef __VA_ARGS__ lily_element_##NAME;                                            \
  typedef lily_element_##NAME lily_type_##NAME LILY_UNWRAP DIMENSIONS;                \
  static const char lily_marker_##NAME = 0;                                           \
  lily_type_##NAME& NAME = *static_cast<lily_type_##NAME*>(                           \
      ::lily_sim::threadgroup_variable(&lily_marker_##NAME, sizeof(lily_type_##NAME), \
                                       alignof(lily_type_##NAME) > 16 ? alignof(lily_type_##NAME) : 16, #NAME))
