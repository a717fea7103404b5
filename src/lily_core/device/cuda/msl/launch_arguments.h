// cuda/msl/launch_arguments.h -- how a running kernel finds its position and its threadgroup memory. Threadgroups are
// one-dimensional.
#pragma once

#include "device/msl/position.h"

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

using lily_device::position;

extern __shared__ __align__(16) unsigned char threadgroup_memory[];

}  // namespace lily_cuda
