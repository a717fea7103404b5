// sim/msl/lily_msl.h -- the Metal vocabulary of translated kernels on the sim device.
#pragma once

#define LILY_FN inline __attribute__((always_inline))
#define LILY_INFINITY __builtin_inff()
#define LILY_NAN __builtin_nanf("")
#define LILY_MEMCPY __builtin_memcpy
#define LILY_BUILTIN(function) __builtin_##function
#define LILY_RSQRT(x) (1.0f / __builtin_sqrtf(x))
#define LILY_POPCOUNT(x) __builtin_popcount(x)
#define LILY_CLZ(x) __builtin_clz(x)

#include "device/msl/base.h"

namespace metal {

// Round to nearest even; a NaN stays one.
LILY_FN ushort lily_bfloat_bits(float value) {
  const uint bits = lily_bit_cast<uint>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<ushort>((bits >> 16) | 0x40u);
  return static_cast<ushort>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#if defined(__aarch64__)
using lily_native_half = __fp16;  // g++ 12 has no _Float16 there
#else
using lily_native_half = _Float16;
#endif
LILY_FN ushort lily_half_bits(float value) { return lily_bit_cast<ushort>(static_cast<lily_native_half>(value)); }
LILY_FN float lily_half_value(ushort bits) { return static_cast<float>(lily_bit_cast<lily_native_half>(bits)); }

}  // namespace metal

#include "atomics.h"
#include "barrier.h"
#include "device/msl/float16.h"
#include "device/msl/fragment.h"
#include "device/msl/math.h"
#include "device/msl/synchronization.h"
#include "device/msl/vector.h"
#include "launch_arguments.h"
#include "runtime/lane.h"
#include "sim_tile.h"
#include "simd.h"
#include "simdgroup_matrix.h"
