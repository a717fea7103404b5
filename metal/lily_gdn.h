// lily_gdn.h -- rows of the recurrent state of Gated DeltaNet, split over lanes: what the scans and the step share.
//
// A head's state is f32 [value_dim, key_dim]. One row of it, and the keys and queries that meet it, lie on LANES lanes
// of a simdgroup (32, 16, 8 or 4): part i of lane l is the four elements from 4 * (i * LANES + l) on, so that the lanes
// of a row read consecutive addresses. key_dim is the constant kKeyDim, a multiple of 32; if it is not a multiple of 4
// * LANES, the last lanes hold zeros.
#pragma once

#include "lily_common.h"

constant int kKeyDim [[function_constant(kKeyDimIndex)]];
constant constexpr int kMaxKeyDim = 256;

template <int LANES>
METAL_FUNC bool part_exists(int i, uint lane) {
  const int whole = 4 * LANES;
  return kKeyDim % whole == 0 ? i * whole < kKeyDim : i * whole + 4 * int(lane) < kKeyDim;
}

template <int LANES>
METAL_FUNC uint part_offset(int i, uint lane) {
  return 4u * (uint(i * LANES) + lane);
}

// Four bf16 values in two words, widened.
METAL_FUNC float4 widen(uint2 words) {
  return float4(as_type<float>(words.x << 16), as_type<float>(words.x & 0xffff0000u), as_type<float>(words.y << 16),
                as_type<float>(words.y & 0xffff0000u));
}

// The part of a key or a query on one lane, still in bf16.
template <int LANES>
struct KeyRow {
  uint2 parts[kMaxKeyDim / (4 * LANES)];

  METAL_FUNC void load(device const bfloat* row, uint lane) {
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      parts[i] = uint2(0u, 0u);
      if (part_exists<LANES>(i, lane)) parts[i] = *(device const uint2*)(row + part_offset<LANES>(i, lane));
    }
  }
  METAL_FUNC void load_threadgroup(threadgroup const uint2* row, uint lane) {
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      parts[i] = uint2(0u, 0u);
      if (part_exists<LANES>(i, lane)) parts[i] = row[part_offset<LANES>(i, lane) / 4u];
    }
  }
};

// The part of a row of the state on one lane.
template <int LANES>
struct StateRow {
  float4 parts[kMaxKeyDim / (4 * LANES)];

  METAL_FUNC void load(device const float* row, uint lane) {
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      parts[i] = float4(0.0f);
      if (part_exists<LANES>(i, lane)) parts[i] = *(device const float4*)(row + part_offset<LANES>(i, lane));
    }
  }
  METAL_FUNC void store(device float* row, uint lane) {
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      if (part_exists<LANES>(i, lane)) *(device float4*)(row + part_offset<LANES>(i, lane)) = parts[i];
    }
  }
  // This lane's share of the row's product with a key.
  METAL_FUNC float multiply(thread const KeyRow<LANES>& key) {
    float4 sums = float4(0.0f);
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      if (i * 4 * LANES < kKeyDim) sums += parts[i] * widen(key.parts[i]);
    }
    return (sums.x + sums.y) + (sums.z + sums.w);
  }
  // row = decay * row + delta * key
  METAL_FUNC void update(float decay, float delta, thread const KeyRow<LANES>& key) {
    UNROLL for (int i = 0; i < kMaxKeyDim / (4 * LANES); i++) {
      if (i * 4 * LANES < kKeyDim) parts[i] = decay * parts[i] + delta * widen(key.parts[i]);
    }
  }
};

// The sum over the LANES lanes of a row, on each of them.
template <int LANES>
METAL_FUNC float sum_row(float value) {
  if (LANES == 32) {
    value = simd_sum(value);
  } else {
    UNROLL for (int mask = 1; mask < LANES; mask *= 2) value += simd_shuffle_xor(value, ushort(mask));
  }
  return value;
}

// The sums of COUNT values over the lanes of a row, in COUNT - 1 + log2(LANES / COUNT) shuffles: lane l gets that of
// value l % COUNT. The order of additions is the same for each value. Overwrites `values`. Both loops have constant
// bounds: a compiler that left an index open would put the array in memory.
template <int LANES, int COUNT>
METAL_FUNC float sum_each(thread float* values, uint lane) {
  UNROLL for (int step = 2; step <= COUNT; step *= 2) {
    const int left = COUNT / step;  // values, after this step
    const bool upper = (lane & uint(left)) != 0u;
    UNROLL for (int i = 0; i < COUNT / 2; i++) {
      if (i < left) {
        const float low = values[i];
        const float high = values[i + left];
        values[i] = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, ushort(left));
      }
    }
  }
  float sum = values[0];
  UNROLL for (int mask = COUNT; mask < LANES; mask *= 2) sum += simd_shuffle_xor(sum, ushort(mask));
  return sum;
}

// One token: row = decay * row + beta * (value - decay * row . key) * key; returns this lane's share of row . query.
template <int LANES>
METAL_FUNC float delta_step(thread StateRow<LANES>& row, thread const KeyRow<LANES>& query,
                            thread const KeyRow<LANES>& key, float value, float decay, float beta) {
  const float recalled = decay * sum_row<LANES>(row.multiply(key));
  row.update(decay, beta * (value - recalled), key);
  return row.multiply(query);
}
