// cuda/msl/lily_msl.h -- the Metal vocabulary of translated kernels on NVIDIA GPUs, compiled by NVRTC.
#pragma once

#define LILY_FN __device__ __forceinline__
#define LILY_INFINITY __builtin_bit_cast(float, 0x7f800000u)
#define LILY_NAN __builtin_bit_cast(float, 0x7fc00000u)
#define LILY_MEMCPY memcpy
#define LILY_BUILTIN(function) ::function
#define LILY_RSQRT(x) ::rsqrtf(x)
#define LILY_POPCOUNT(x) ::__popc(x)
#define LILY_CLZ(x) ::__clz(static_cast<int>(x))

#include "device/msl/base.h"

namespace metal {

LILY_FN ushort lily_bfloat_bits(float value) {
  ushort bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
LILY_FN ushort lily_half_bits(float value) {
  ushort bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
LILY_FN float lily_half_value(ushort bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

}  // namespace metal

#include "atomics.h"
#include "barrier.h"
#include "cuda_tile.h"
#include "device/msl/float16.h"
#include "device/msl/fragment.h"
#include "device/msl/math.h"
#include "device/msl/synchronization.h"
#include "device/msl/vector.h"
#include "launch_arguments.h"
#include "simd.h"
#include "simdgroup_matrix.h"
