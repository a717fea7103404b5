// cpu/matmul/portable.h -- the matrix kernels in plain C++: the reference for the others and the fallback.
//
// Activations are put together again as int16 for a block of rows; a weight row is widened to int16 once for them.
#pragma once

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

inline constexpr int kPortableRows = 8;

// fma(a, b, c) with one rounding. Without the instruction: the product is exact in float64; the sum is rounded to
// odd there, which the second rounding, to float32, cannot spoil (Boldo and Melquiond, 2008).
inline float fused_multiply_add(float a, float b, float c) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = c;
  const double sum = product + addend;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (addend - back);
  std::uint64_t bits;
  std::uint64_t error_bits;
  std::memcpy(&bits, &sum, sizeof bits);
  std::memcpy(&error_bits, &error, sizeof error_bits);
  const std::uint64_t inexact = static_cast<std::uint64_t>(error < 0.0) | static_cast<std::uint64_t>(error > 0.0);
  const std::uint64_t step = ~bits & inexact;                     // 1: the sum is inexact and even
  const std::uint64_t towards = 0 - ((bits ^ error_bits) >> 63);  // all ones: the exact sum is nearer to zero
  bits += (step ^ towards) - towards;
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return static_cast<float>(odd);
#endif
}

inline std::int32_t dot(const std::int16_t* a, const std::int16_t* b, std::int64_t size) {
  std::int32_t sum = 0;
  for (std::int64_t k = 0; k < size; ++k) sum += static_cast<std::int32_t>(a[k]) * static_cast<std::int32_t>(b[k]);
  return sum;
}

// The codes of a row in the activations' column order. bytes: room for [columns].
inline void widen_codes(const std::byte* row, std::int64_t columns, MatrixFormat format, std::uint8_t* bytes,
                        std::int16_t* codes) {
  if (format == MatrixFormat::affine4) {
    for (std::int64_t k = 0; k < columns; k += 8) {
      std::uint8_t pairs[4];
      std::memcpy(pairs, row + k / 2, 4);
      for (int i = 0; i < 4; ++i) bytes[k + i] = pairs[i] & 15U;
      for (int i = 0; i < 4; ++i) bytes[k + 4 + i] = static_cast<std::uint8_t>(pairs[i] >> 4);
    }
  } else {
    std::memcpy(bytes, row, static_cast<std::size_t>(columns));
  }
  for (std::int64_t k = 0; k < columns; ++k) codes[k] = static_cast<std::int16_t>(bytes[k]);
}

// rows rows of q from the activation rows from `first` on, and one weight row; the products go to args.out.
struct PortableBlock {
  const MatmulArgs& args;
  std::int64_t first;
  int rows;
  const std::int16_t* q;      // [kPortableRows, columns]
  const std::int16_t* codes;  // [columns]
  const float* scales[kPortableRows];
  const float* sums[kPortableRows];

  void multiply(std::int64_t row) const {
    const Matrix& weight = *args.weight;
    const std::int64_t groups = weight.columns / weight.group_size;
    float y[kPortableRows] = {};
    for (std::int64_t g = 0; g < groups; ++g) {
      const float scale = load_element(weight.scales, weight.element_type, row * groups + g);
      const float bias = load_element(weight.biases, weight.element_type, row * groups + g);
      const std::int64_t column = g * weight.group_size;
      float total[kPortableRows] = {};
      float x_scale[kPortableRows] = {};
      float x_sum[kPortableRows] = {};
      for (int r = 0; r < rows; ++r) {
        total[r] = static_cast<float>(dot(codes + column, q + r * weight.columns + column, weight.group_size));
        x_scale[r] = scales[r][g];
        x_sum[r] = sums[r][g];
      }
      for (int r = 0; r < kPortableRows; ++r) y[r] = fused_multiply_add(total[r], scale * x_scale[r], y[r]);
      for (int r = 0; r < kPortableRows; ++r) y[r] = fused_multiply_add(bias, x_sum[r], y[r]);
    }
    for (int r = 0; r < rows; ++r) args.out[(first + r) * args.out_stride + row] = y[r];
  }
};

inline std::size_t portable_scratch_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(columns) * (2 * kPortableRows + 3);
}

inline void portable_affine(const MatmulArgs& args) {
  const Matrix& weight = *args.weight;
  const QuantizedRows& x = *args.x;
  auto* q = reinterpret_cast<std::int16_t*>(args.scratch);
  std::int16_t* codes = q + kPortableRows * weight.columns;
  auto* bytes = reinterpret_cast<std::uint8_t*>(codes + weight.columns);
  const std::int64_t row_bytes = weight.row_bytes();
  for (std::int64_t first = 0; first < args.row_count; first += kPortableRows) {
    const std::int64_t left = args.row_count - first;
    PortableBlock block{args, first, left < kPortableRows ? static_cast<int>(left) : kPortableRows, q, codes, {}, {}};
    for (int r = 0; r < block.rows; ++r) {
      const std::int64_t row = args.row_index != nullptr ? args.row_index[first + r] : first + r;
      const std::int8_t* high = x.high + row * x.columns;
      const std::int8_t* low = x.low + row * x.columns;
      std::int16_t* values = q + r * x.columns;
      for (std::int64_t k = 0; k < x.columns; ++k) values[k] = static_cast<std::int16_t>(256 * high[k] + low[k]);
      block.scales[r] = x.scales + row * x.groups();
      block.sums[r] = x.sums + row * x.groups();
    }
    for (std::int64_t n = args.row_begin; n < args.row_end; ++n) {
      widen_codes(weight.weight + n * row_bytes, weight.columns, weight.format, bytes, codes);
      block.multiply(n);
    }
  }
}

// Sixteen running sums, as in matmul/plain.h.
template <ElementType Type>
float plain_dot(const std::byte* weights, const float* x, std::int64_t columns) {
  float lanes[16] = {};
  std::int64_t k = 0;
  for (; k + 16 <= columns; k += 16) {
    for (int i = 0; i < 16; ++i) lanes[i] += load_element(weights, Type, k + i) * x[k + i];
  }
  for (int i = 0; k < columns; ++i, ++k) lanes[i] += load_element(weights, Type, k) * x[k];
  for (int i = 0; i < 8; ++i) lanes[i] += lanes[i + 8];
  for (int i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

inline void portable_plain(const MatmulArgs& args) {
  const Matrix& weight = *args.weight;
  for (std::int64_t n = args.row_begin; n < args.row_end; ++n) {
    const std::byte* row = weight.weight + n * weight.row_bytes();
    for (std::int64_t m = 0; m < args.row_count; ++m) {
      const std::int64_t input = args.row_index != nullptr ? args.row_index[m] : m;
      const float* x = args.x_plain + input * args.x_stride;
      float* out = args.out + m * args.out_stride + n;
      switch (weight.element_type) {
        case ElementType::bfloat16:
          *out = plain_dot<ElementType::bfloat16>(row, x, weight.columns);
          break;
        case ElementType::float16:
          *out = plain_dot<ElementType::float16>(row, x, weight.columns);
          break;
        case ElementType::float32:
          *out = plain_dot<ElementType::float32>(row, x, weight.columns);
          break;
      }
    }
  }
}

}  // namespace
}  // namespace lily::cpu
