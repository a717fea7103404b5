// cuda/msl/launch_arguments.h -- how a running kernel finds its position and its threadgroup memory. Threadgroups are
// one-dimensional.
#pragma once

#include "device/msl/vector.h"

namespace lily_cuda {

struct Size3 {
  uint x, y, z;
};

LILY_FN uint thread_index_in_threadgroup() { return threadIdx.x; }
LILY_FN uint thread_index_in_simdgroup() { return threadIdx.x & 31u; }
LILY_FN uint simdgroup_index_in_threadgroup() { return threadIdx.x >> 5; }
LILY_FN uint simdgroups_per_threadgroup() { return blockDim.x >> 5; }
LILY_FN uint threads_per_simdgroup() { return 32u; }
LILY_FN Size3 threadgroup_position_in_grid() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
LILY_FN Size3 threadgroups_per_grid() { return {gridDim.x, gridDim.y, gridDim.z}; }
LILY_FN Size3 threads_per_threadgroup() { return {blockDim.x, 1u, 1u}; }
LILY_FN Size3 thread_position_in_threadgroup() { return {threadIdx.x, 0u, 0u}; }
LILY_FN Size3 thread_position_in_grid() { return {blockIdx.x * blockDim.x + threadIdx.x, blockIdx.y, blockIdx.z}; }
LILY_FN Size3 threads_per_grid() { return {gridDim.x * blockDim.x, gridDim.y, gridDim.z}; }

// A position or index as the type the kernel declares: uint, uint2 or uint3.
template <class T>
struct Position {
  LILY_FN static T from(Size3 size) { return size.x; }
};
template <>
struct Position<metal::uint2> {
  LILY_FN static metal::uint2 from(Size3 size) { return metal::uint2(size.x, size.y); }
};
template <>
struct Position<metal::uint3> {
  LILY_FN static metal::uint3 from(Size3 size) { return metal::uint3(size.x, size.y, size.z); }
};
template <class T>
LILY_FN T position(Size3 size) {
  return Position<T>::from(size);
}
template <class T>
LILY_FN T position(uint index) {
  return index;
}

extern __shared__ __align__(16) unsigned char threadgroup_memory[];

}  // namespace lily_cuda
