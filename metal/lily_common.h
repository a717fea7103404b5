// lily_common.h -- what every kernel file uses: loop unrolling, and functions that Metal lacks, in safe precision.
#pragma once

#include <metal_stdlib>

#include "lily_args.h"

using namespace metal;
using namespace lily::args;

// Goes before a loop over a register array, so that the array stays in registers. The sim device ignores it.
#if defined(LILY_SIM)
#define UNROLL
#elif defined(LILY_CUDA)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + precise::exp(-x)); }

METAL_FUNC float silu(float x) { return x * sigmoid(x); }

// log(1 + x) for x >= 0, accurate where 1 + x rounds to 1.
METAL_FUNC float log_one_plus(float x) {
  const float sum = 1.0f + x;
  return sum == 1.0f ? x : precise::log(sum) * (x / (sum - 1.0f));
}

// log(1 + exp(x)) without overflow.
METAL_FUNC float softplus(float x) { return max(x, 0.0f) + log_one_plus(precise::exp(-fabs(x))); }
