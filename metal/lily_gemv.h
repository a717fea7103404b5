// lily_gemv.h -- what a simdgroup does to multiply a few rows of a matrix with one vector, in every format of a matrix.
//
// A lane takes WORDS uints of codes of each row at a time, beside its neighbours' words, so that a simdgroup reads whole
// cache lines; the rows share the lane's part of the vector, which stays in registers. Codes are not shifted into place:
// they are masked where they lie in their half word, and the vector is scaled down by the weight of that place instead.
// A group's values are scale * code + bias, so its products add up to scale * sum(code x) + bias * sum(x), and sum(x)
// serves all rows. A norm's factor is common to all columns: the lane only gathers the squares, and the sums are
// multiplied with the factor at the end.
#pragma once

#include "lily_common.h"

constant constexpr int kLaneRows = kGemvRows * kSimdWidth / kGemvThreads;  // rows a simdgroup; results are a float4

// A matrix [rows, columns] in device memory. Plain bf16 matrices have no scales and biases.
struct PackedMatrix {
  device const uint* codes;     // [rows, columns * bits / 32]
  device const bfloat* scales;  // [rows, columns / group_size]
  device const bfloat* biases;
  uint rows;
  uint columns;
  uint group_size;
};

METAL_FUNC PackedMatrix packed_matrix(device const uint* codes, device const bfloat* scales, device const bfloat* biases,
                                      uint rows, uint columns, uint group_size) {
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

// The values of a vector that meet a lane's WORDS uints of a row.
template <int BITS, int WORDS, int COLUMNS = WORDS * 32 / BITS>
struct LaneVector {
  float values[COLUMNS];  // divided by the weight of their code's place in its half word
  float sum;              // of the values before that

  METAL_FUNC void load_bfloat(device const uint* x, uint column) {
    uint pairs[COLUMNS / 2];
    load_words<COLUMNS / 2>(x + column / 2, pairs);
    UNROLL for (int i = 0; i < COLUMNS / 2; i++) {
      values[2 * i] = low_bfloat(pairs[i]);
      values[2 * i + 1] = high_bfloat(pairs[i]);
    }
    finish();
  }

  // The residual times the norm's weight; the residual's squares are added to `squares`.
  METAL_FUNC void load_residual(device const uint* x, device const float* norm_weight, uint column,
                                thread float& squares) {
    uint weights[COLUMNS];
    uint residual[COLUMNS];
    load_words<COLUMNS>(x + column, residual);
    load_words<COLUMNS>((device const uint*)norm_weight + column, weights);
    UNROLL for (int i = 0; i < COLUMNS; i++) {
      const float value = as_type<float>(residual[i]);
      squares = fma(value, value, squares);
      values[i] = value * as_type<float>(weights[i]);
    }
    finish();
  }

  METAL_FUNC void finish() {
    sum = 0.0f;
    UNROLL for (int i = 0; i < COLUMNS; i++) {
      sum += values[i];
      values[i] *= as_type<float>((127u - uint(BITS * (i % (16 / BITS)))) << 23);  // 2^-(bits below)
    }
  }
};

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

// What RMS normalisation multiplies a residual with, from the squares that the lanes have gathered.
METAL_FUNC float norm_factor(float squares, uint columns, float eps) {
  return precise::rsqrt(simd_sum(squares) / float(columns) + eps);
}

// Rows [first_row, first_row + kLaneRows) times x; all lanes get the result.
template <int BITS, int WORDS, bool NORM>
METAL_FUNC float4 multiply_rows_of(PackedMatrix matrix, InputVector x, uint first_row, uint lane) {
  const uint columns = WORDS * 32 / BITS;
  float4 sums = float4(0.0f);
  float squares = 0.0f;
  for (uint column = lane * columns; column < matrix.columns; column += kSimdWidth * columns) {
    LaneRows<BITS, WORDS> rows;
    LaneVector<BITS, WORDS> part;
    rows.load(matrix, first_row, column);
    if (NORM) {
      part.load_residual(x.values, x.norm_weight, column, squares);
    } else {
      part.load_bfloat(x.values, column);
    }
    sums += rows.products(part);
  }
  sums = simd_sum(sums);
  return NORM ? sums * norm_factor(squares, matrix.columns, x.eps) : sums;
}

// The same for a number of bits that a function constant gives. Few columns are spread over all lanes. Plain rows whose
// length is not a multiple of 8 are not aligned for wide loads.
template <bool NORM>
METAL_FUNC float4 multiply_rows(int bits, PackedMatrix matrix, InputVector x, uint first_row, uint lane) {
  if (bits == 4) {
    return matrix.columns < 1024u ? multiply_rows_of<4, 2, NORM>(matrix, x, first_row, lane)
                                  : multiply_rows_of<4, 4, NORM>(matrix, x, first_row, lane);
  }
  if (bits == 8) return multiply_rows_of<8, 4, NORM>(matrix, x, first_row, lane);
  return matrix.columns % 8u == 0u ? multiply_rows_of<16, 4, NORM>(matrix, x, first_row, lane)
                                   : multiply_rows_of<16, 1, NORM>(matrix, x, first_row, lane);
}
