// lily_gemv.h -- what a simdgroup does to multiply a few rows of a matrix with one vector, in every format of a matrix.
//
// A lane takes WORDS uints of codes of each row at a time, beside its neighbors' words, so that a simdgroup reads
// whole cache lines; the rows share the lane's part of the vector, which stays in registers. Codes are not shifted into
// place: they are masked where they lie in their half word, and the vector is scaled down by the weight of that place
// instead. A group's values are scale * code + bias, so its products add up to scale * sum(code x) + bias * sum(x), and
// sum(x) serves all rows. A residual that is normalized on the way in is staged in threadgroup memory, in the order in
// which lanes take it; the norm's factor is common to all columns, so the sums are multiplied with it at the end.
#pragma once

#include "lily_common.h"

constant constexpr int kLaneRows = kGemvRows * kSimdWidth / kGemvThreads;  // rows a simdgroup; results are a float4
constant constexpr int kStagedColumns = 2048;                              // of a residual, at a time

// A matrix [rows, columns] in device memory. Plain bf16 matrices have no scales and biases.
struct PackedMatrix {
  device const uint* codes;     // [rows, columns * bits / 32]
  device const bfloat* scales;  // [rows, columns / group_size]
  device const bfloat* biases;
  uint rows;
  uint columns;
  uint group_size;
};

METAL_FUNC PackedMatrix packed_matrix(device const uint* codes, device const bfloat* scales,
                                      device const bfloat* biases, uint rows, uint columns, uint group_size) {
  PackedMatrix matrix;
  matrix.codes = codes;
  matrix.scales = scales;
  matrix.biases = biases;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.group_size = group_size;
  return matrix;
}

// A vector [columns]: f32 with a norm's weight f32 [columns], or bf16 two a uint.
struct InputVector {
  device const uint* values;
  device const float* norm_weight;
  float eps;
};

METAL_FUNC InputVector input_vector(device const uint* values, device const float* norm_weight, float eps) {
  InputVector x;
  x.values = values;
  x.norm_weight = norm_weight;
  x.eps = eps;
  return x;
}

METAL_FUNC float low_bfloat(uint pair) { return as_type<float>(pair << 16); }
METAL_FUNC float high_bfloat(uint pair) { return as_type<float>(pair & 0xffff0000u); }

// COUNT uints in the widest loads; `from` is aligned to 16 bytes when COUNT is a multiple of 4, to 8 when of 2.
template <int COUNT>
METAL_FUNC void load_words(device const uint* from, thread uint* to) {
  if (COUNT % 4 == 0) {
    UNROLL for (int i = 0; i < COUNT / 4; i++) {
      const uint4 words = *(device const uint4*)(from + 4 * i);
      UNROLL for (int j = 0; j < 4; j++) to[4 * i + j] = words[j];
    }
  } else if (COUNT % 2 == 0) {
    UNROLL for (int i = 0; i < COUNT / 2; i++) {
      const uint2 words = *(device const uint2*)(from + 2 * i);
      UNROLL for (int j = 0; j < 2; j++) to[2 * i + j] = words[j];
    }
  } else {
    UNROLL for (int i = 0; i < COUNT; i++) to[i] = from[i];
  }
}

// What a value is multiplied with before it meets code `place` of its row: 1 over the weight of the code's lowest bit
// in its half word.
template <int BITS>
METAL_FUNC float place_scale(int place) {
  return as_type<float>((127u - uint(BITS * (place % (16 / BITS)))) << 23);
}

// The values of a vector that meet a lane's WORDS uints of a row.
template <int BITS, int WORDS, int COLUMNS = WORDS * 32 / BITS>
struct LaneVector {
  float values[COLUMNS];  // times their place_scale
  float sum;              // of the values before that

  METAL_FUNC void load_bfloat(device const uint* x, uint column) {
    uint pairs[COLUMNS / 2];
    load_words<COLUMNS / 2>(x + column / 2, pairs);
    sum = 0.0f;
    UNROLL for (int i = 0; i < COLUMNS / 2; i++) {
      const float low = low_bfloat(pairs[i]);
      const float high = high_bfloat(pairs[i]);
      sum += low + high;
      values[2 * i] = low * place_scale<BITS>(2 * i);
      values[2 * i + 1] = high * place_scale<BITS>(2 * i + 1);
    }
  }

  // Reads what stage_residual has staged: step `step` of the simdgroup along the columns.
  METAL_FUNC void load_staged(threadgroup const float4* staged, uint step, uint lane) {
    float4 sums = float4(0.0f);
    UNROLL for (int i = 0; i < COLUMNS / 4; i++) {
      const float4 four = staged[(step * (COLUMNS / 4) + uint(i)) * kSimdWidth + lane];
      UNROLL for (int j = 0; j < 4; j++) {
        values[4 * i + j] = four[j];
        sums[j] = fma(four[j], 1.0f / place_scale<BITS>(j), sums[j]);
      }
    }
    sum = (sums.x + sums.y) + (sums.z + sums.w);
  }

  // A residual times the norm's weight, not staged; its squares are added to `squares`.
  METAL_FUNC void load_residual(device const float* x, device const float* norm_weight, uint column,
                                thread float& squares) {
    sum = 0.0f;
    if (COLUMNS % 4 == 0) {
      UNROLL for (int i = 0; i < COLUMNS; i += 4) {
        const float4 four = *(device const float4*)(x + column + i);
        const float4 weighted = four * *(device const float4*)(norm_weight + column + i);
        squares += dot(four, four);
        sum += (weighted.x + weighted.y) + (weighted.z + weighted.w);
        UNROLL for (int j = 0; j < 4; j++) values[i + j] = weighted[j] * place_scale<BITS>(i + j);
      }
    } else {
      UNROLL for (int i = 0; i < COLUMNS; i++) {
        const float value = x[column + i];
        squares = fma(value, value, squares);
        values[i] = value * norm_weight[column + i] * place_scale<BITS>(i);
        sum += value * norm_weight[column + i];
      }
    }
  }
};

// The residual's columns [begin, end) times the norm's weight and the place_scale, in the order in which lanes take
// them, COLUMNS at a time: fours [step][COLUMNS / 4][lane], so that lanes read side by side. All threads of the
// threadgroup do a part; returns the sum of the squares that this thread has read.
template <int BITS, int COLUMNS>
METAL_FUNC float stage_residual(InputVector x, uint begin, uint end, uint thread_index, threadgroup float4* staged) {
  const float4 scales = float4(place_scale<BITS>(0), place_scale<BITS>(1), place_scale<BITS>(2), place_scale<BITS>(3));
  float squares = 0.0f;
  for (uint column = begin + 4u * thread_index; column < end; column += 4u * kGemvThreads) {
    const float4 values = *((device const float4*)((device const float*)x.values + column));
    squares += dot(values, values);
    const uint in_step = (column - begin) % (COLUMNS * kSimdWidth);
    const uint place = (column - begin - in_step) / 4u + in_step % COLUMNS / 4u * kSimdWidth + in_step / COLUMNS;
    staged[place] = values * *((device const float4*)(x.norm_weight + column)) * scales;
  }
  return squares;
}

// The codes of kLaneRows rows, WORDS uints of each, and their groups' scales and biases.
template <int BITS, int WORDS, int COLUMNS = WORDS * 32 / BITS>
struct LaneRows {
  uint words[kLaneRows][WORDS];
  float scales[kLaneRows];
  float biases[kLaneRows];

  // Rows past the end repeat the last one. A lane's columns lie in one group.
  METAL_FUNC void load(PackedMatrix matrix, uint first_row, uint column) {
    UNROLL for (int r = 0; r < kLaneRows; r++) {
      const uint row = min(first_row + uint(r), matrix.rows - 1u);
      load_words<WORDS>(matrix.codes + row * (matrix.columns * BITS / 32u) + column * BITS / 32u, words[r]);
      if (BITS < 16) {
        const uint group = row * (matrix.columns / matrix.group_size) + column / matrix.group_size;
        scales[r] = float(matrix.scales[group]);
        biases[r] = float(matrix.biases[group]);
      }
    }
  }

  // This lane's share of row r times x.
  METAL_FUNC float product(int r, thread const LaneVector<BITS, WORDS>& x) {
    float4 sums = float4(0.0f);
    UNROLL for (int i = 0; i < WORDS; i++) {
      const uint word = words[r][i];
      const int first = 32 / BITS * i;
      if (BITS == 4) {
        sums = add_codes(int4(int(word & 0xfu), int(word & 0xf0u), int(word & 0xf00u), int(word & 0xf000u)), x, first,
                         sums);
        const uint high = word >> 16;
        sums = add_codes(int4(int(high & 0xfu), int(high & 0xf0u), int(high & 0xf00u), int(high & 0xf000u)), x,
                         first + 4, sums);
      } else if (BITS == 8) {
        const uint high = word >> 16;
        sums = add_codes(int4(int(word & 0xffu), int(word & 0xff00u), int(high & 0xffu), int(high & 0xff00u)), x, first,
                         sums);
      } else {
        sums.x = fma(low_bfloat(word), x.values[first], sums.x);
        sums.y = fma(high_bfloat(word), x.values[first + 1], sums.y);
      }
    }
    const float total = (sums.x + sums.y) + (sums.z + sums.w);
    return BITS < 16 ? fma(scales[r], total, biases[r] * x.sum) : total;
  }

  METAL_FUNC float4 add_codes(int4 codes, thread const LaneVector<BITS, WORDS>& x, int first, float4 sums) {
    const float4 values = float4(x.values[first], x.values[first + 1], x.values[first + 2], x.values[first + 3]);
    return fma(float4(codes), values, sums);
  }

  METAL_FUNC float4 products(thread const LaneVector<BITS, WORDS>& x) {
    float4 result = float4(0.0f);
    UNROLL for (int r = 0; r < kLaneRows; r++) result[r] = product(r, x);
    return result;
  }
};

// What RMS normalization multiplies a residual with.
METAL_FUNC float norm_factor(float squares, uint columns, float eps) {
  return precise::rsqrt(squares / float(columns) + eps);
}

// Where a thread is in its threadgroup.
struct ThreadPlace {
  uint simdgroup;
  uint lane;
};

// Rows [first_row, first_row + kLaneRows) of MATRICES matrices of one shape times the normalized residual: `sums`, for
// all lanes. All threads of the threadgroup make this call, with rows past the end too. A step's codes are asked for
// before the residual is staged, and before the vector's part is fetched.
template <int BITS, int WORDS, int MATRICES>
METAL_FUNC void multiply_normalized_of(thread const PackedMatrix* matrices, InputVector x, uint first_row,
                                       ThreadPlace thread_place, threadgroup float4* staged, threadgroup float* partial,
                                       thread float4* sums) {
  constexpr uint width = WORDS * 32 / BITS;
  const uint columns = matrices[0].columns;
  float squares = 0.0f;
  UNROLL for (int m = 0; m < MATRICES; m++) sums[m] = float4(0.0f);
  for (uint begin = 0; begin < columns; begin += kStagedColumns) {
    const uint end = min(begin + uint(kStagedColumns), columns);
    uint column = begin + thread_place.lane * width;
    LaneRows<BITS, WORDS> rows[MATRICES];
    if (column < end) {
      UNROLL for (int m = 0; m < MATRICES; m++) rows[m].load(matrices[m], first_row, column);
    }
    if (begin > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    squares += stage_residual<BITS, int(width)>(x, begin, end, thread_place.simdgroup * kSimdWidth + thread_place.lane,
                                                staged);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; column < end; step++) {
      LaneVector<BITS, WORDS> part;
      part.load_staged(staged, step, thread_place.lane);
      UNROLL for (int m = 0; m < MATRICES; m++) sums[m] += rows[m].products(part);
      column += width * kSimdWidth;
      if (column < end) {
        UNROLL for (int m = 0; m < MATRICES; m++) rows[m].load(matrices[m], first_row, column);
      }
    }
  }
  squares = simd_sum(squares);
  if (thread_place.lane == 0) partial[thread_place.simdgroup] = squares;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0.0f;
  UNROLL for (int i = 0; i < kGemvThreads / kSimdWidth; i++) total += partial[i];
  const float factor = norm_factor(total, columns, x.eps);
  UNROLL for (int m = 0; m < MATRICES; m++) sums[m] = simd_sum(sums[m]) * factor;
}

// The same for plain rows whose length is not a multiple of 8: they are not aligned for wide loads.
template <int MATRICES>
METAL_FUNC void multiply_normalized_words(thread const PackedMatrix* matrices, InputVector x, uint first_row, uint lane,
                                          thread float4* sums) {
  const uint columns = matrices[0].columns;
  float squares = 0.0f;
  UNROLL for (int m = 0; m < MATRICES; m++) sums[m] = float4(0.0f);
  for (uint column = 2u * lane; column < columns; column += 2u * kSimdWidth) {
    LaneVector<16, 1> part;
    part.load_residual((device const float*)x.values, x.norm_weight, column, squares);
    UNROLL for (int m = 0; m < MATRICES; m++) {
      LaneRows<16, 1> rows;
      rows.load(matrices[m], first_row, column);
      sums[m] += rows.products(part);
    }
  }
  const float factor = norm_factor(simd_sum(squares), columns, x.eps);
  UNROLL for (int m = 0; m < MATRICES; m++) sums[m] = simd_sum(sums[m]) * factor;
}

// For a number of bits that a function constant gives.
template <int MATRICES>
METAL_FUNC void multiply_normalized(int bits, thread const PackedMatrix* matrices, InputVector x, uint first_row,
                                    ThreadPlace thread_place, threadgroup float4* staged, threadgroup float* partial,
                                    thread float4* sums) {
  if (bits == 4) {
    multiply_normalized_of<4, 2, MATRICES>(matrices, x, first_row, thread_place, staged, partial, sums);
  } else if (bits == 8) {
    multiply_normalized_of<8, 4, MATRICES>(matrices, x, first_row, thread_place, staged, partial, sums);
  } else if (matrices[0].columns % 8u == 0u) {
    multiply_normalized_of<16, 4, MATRICES>(matrices, x, first_row, thread_place, staged, partial, sums);
  } else {
    multiply_normalized_words<MATRICES>(matrices, x, first_row, thread_place.lane, sums);
  }
}

// STEPS steps of a simdgroup along its rows, from this lane's `column` on. All codes are asked for before the first is
// used.
template <int BITS, int WORDS, int STEPS>
METAL_FUNC float4 step_products(PackedMatrix matrix, device const uint* x, uint first_row, uint column) {
  constexpr uint step = WORDS * 32 / BITS * kSimdWidth;
  LaneRows<BITS, WORDS> rows[STEPS];
  float4 sums = float4(0.0f);
  UNROLL for (int s = 0; s < STEPS; s++) rows[s].load(matrix, first_row, column + uint(s) * step);
  UNROLL for (int s = 0; s < STEPS; s++) {
    LaneVector<BITS, WORDS> part;
    part.load_bfloat(x, column + uint(s) * step);
    sums += rows[s].products(part);
  }
  return sums;
}

// A lane's shares of rows [first_row, first_row + kLaneRows) times x bf16; the caller is one of `parts` simdgroups that
// share the columns.
template <int BITS, int WORDS>
METAL_FUNC float4 lane_products(PackedMatrix matrix, device const uint* x, uint first_row, uint lane, uint part,
                                uint parts) {
  constexpr uint width = WORDS * 32 / BITS;
  const uint step = width * kSimdWidth * parts;
  float4 sums = float4(0.0f);
  uint column = (part * kSimdWidth + lane) * width;
  if (parts == 1) {
    for (; column + step < matrix.columns; column += 2u * step) {
      sums += step_products<BITS, WORDS, 2>(matrix, x, first_row, column);
    }
  }
  for (; column < matrix.columns; column += step) sums += step_products<BITS, WORDS, 1>(matrix, x, first_row, column);
  return sums;
}

// The rows times this simdgroup's part of x bf16, for all lanes. Few columns are spread over all lanes.
METAL_FUNC float4 multiply_part(int bits, PackedMatrix matrix, device const uint* x, uint first_row, uint lane,
                                uint part, uint parts) {
  if (bits == 4) {
    return simd_sum(matrix.columns < 1024u * parts ? lane_products<4, 2>(matrix, x, first_row, lane, part, parts)
                                                   : lane_products<4, 4>(matrix, x, first_row, lane, part, parts));
  }
  if (bits == 8) return simd_sum(lane_products<8, 4>(matrix, x, first_row, lane, part, parts));
  return simd_sum(matrix.columns % 8u == 0u ? lane_products<16, 4>(matrix, x, first_row, lane, part, parts)
                                            : lane_products<16, 1>(matrix, x, first_row, lane, part, parts));
}

METAL_FUNC float4 multiply_rows(int bits, PackedMatrix matrix, device const uint* x, uint first_row, uint lane) {
  return multiply_part(bits, matrix, x, first_row, lane, 0u, 1u);
}

// The same by all simdgroups of the threadgroup together, in a fixed order of additions; the sums are simdgroup 0's.
METAL_FUNC float4 multiply_shared_rows(int bits, PackedMatrix matrix, device const uint* x, uint first_row,
                                       ThreadPlace thread_place, threadgroup float4* partial) {
  constexpr uint parts = kGemvThreads / kSimdWidth;
  const float4 own = multiply_part(bits, matrix, x, first_row, thread_place.lane, thread_place.simdgroup, parts);
  if (thread_place.lane == 0) partial[thread_place.simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 sums = float4(0.0f);
  UNROLL for (uint i = 0; i < parts; i++) sums += partial[i];
  return sums;
}

// A lane's shares of rows [first_row, first_row + kLaneRows) times the residual, before the norm's factor; the caller is
// one of `parts` simdgroups that share the columns.
template <int BITS, int WORDS>
METAL_FUNC float4 residual_lane_products(PackedMatrix matrix, InputVector x, uint first_row, uint lane, uint part,
                                         uint parts, thread float& squares) {
  constexpr uint width = WORDS * 32 / BITS;
  float4 sums = float4(0.0f);
  for (uint column = (part * kSimdWidth + lane) * width; column < matrix.columns; column += width * kSimdWidth * parts) {
    LaneRows<BITS, WORDS> rows;
    rows.load(matrix, first_row, column);
    LaneVector<BITS, WORDS> own;
    own.load_residual((device const float*)x.values, x.norm_weight, column, squares);
    sums += rows.products(own);
  }
  return sums;
}

// Rows times the normalized residual by all simdgroups of the threadgroup together; the sums are simdgroup 0's.
METAL_FUNC float4 multiply_shared_normalized(int bits, PackedMatrix matrix, InputVector x, uint first_row,
                                             ThreadPlace place, threadgroup float4* shares, threadgroup float* partial) {
  constexpr uint parts = kGemvThreads / kSimdWidth;
  float squares = 0.0f;
  float4 own;
  if (bits == 4) {
    own = residual_lane_products<4, 2>(matrix, x, first_row, place.lane, place.simdgroup, parts, squares);
  } else if (bits == 8) {
    own = residual_lane_products<8, 4>(matrix, x, first_row, place.lane, place.simdgroup, parts, squares);
  } else if (matrix.columns % 8u == 0u) {
    own = residual_lane_products<16, 4>(matrix, x, first_row, place.lane, place.simdgroup, parts, squares);
  } else {
    own = residual_lane_products<16, 1>(matrix, x, first_row, place.lane, place.simdgroup, parts, squares);
  }
  own = simd_sum(own);
  squares = simd_sum(squares);
  if (place.lane == 0) {
    shares[place.simdgroup] = own;
    partial[place.simdgroup] = squares;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float4 sums = float4(0.0f);
  float total = 0.0f;
  UNROLL for (uint i = 0; i < parts; i++) {
    sums += shares[i];
    total += partial[i];
  }
  return sums * norm_factor(total, matrix.columns, x.eps);
}
