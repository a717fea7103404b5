// cpu/matmul/portable.h -- the matrix kernels in plain C++: the reference for the others and the fallback.
//
// Activations are rejoined to int16 for a block of rows, in the order in which 16 bytes of codes are unpacked: low
// nibbles first, then high ones. Compilers turn this into 16-bit multiply-adds.
#pragma once

#include "cpu/matmul/portable_fma.h"

namespace lily::cpu {
namespace {

inline constexpr int kPortableRows = 8;
inline constexpr std::int64_t kPortableAheadBytes = 192;  // of each weight row; they are read a group at a time

template <int Size>
inline std::int32_t dot(const std::int16_t* a, const std::int16_t* b) {
  std::int32_t sum = 0;
  for (int k = 0; k < Size; ++k) sum += static_cast<std::int32_t>(a[k]) * static_cast<std::int32_t>(b[k]);
  return sum;
}

// The codes of a group of a row.
template <int Bits, int Size>
inline void widen_codes(const std::byte* row, std::int16_t* codes) {
  std::uint8_t bytes[Size * Bits / 8];
  std::memcpy(bytes, row, sizeof bytes);
  if constexpr (Bits == 4) {
    for (int k = 0; k < Size; k += 32) {
      for (int i = 0; i < 16; ++i) codes[k + i] = bytes[k / 2 + i] & 15;
      for (int i = 0; i < 16; ++i) codes[k + 16 + i] = bytes[k / 2 + i] >> 4;
    }
  } else {
    for (int k = 0; k < Size; ++k) codes[k] = bytes[k];
  }
}

// The values of an activation row in the order of widen_codes.
inline void join_halves(const QuantizedRows& x, std::int64_t row, std::int16_t* out) {
  const std::int8_t* high = x.high + row * x.stride;
  const std::int8_t* low = x.low + row * x.stride;
  for (std::int64_t k = 0; k < x.columns; ++k) out[k] = static_cast<std::int16_t>(256 * high[k] + low[k]);
  if (x.order == ColumnOrder::natural) return;
  constexpr std::size_t quad = 4 * sizeof(std::int16_t);  // the low nibbles of a word of codes, or its high ones
  for (std::int64_t k = 0; k < x.columns; k += 32) {
    std::int16_t values[32];
    std::memcpy(values, out + k, sizeof values);
    for (int word = 0; word < 4; ++word) {
      std::memcpy(out + k + 4 * word, values + 8 * word, quad);
      std::memcpy(out + k + 16 + 4 * word, values + 8 * word + 4, quad);
    }
  }
}

// Activation rows from `first` on, and the weight rows that they are multiplied with.
struct PortableBlock {
  const MatmulArgs& args;
  std::int64_t first = 0;
  int rows = 0;
  const std::int16_t* q = nullptr;  // [rows, columns]
  const float* scales[kPortableRows] = {};
  const float* sums[kPortableRows] = {};

  // The weight rows [row, row + count) of a tile.
  template <int Bits, int Size>
  void multiply(std::int64_t row, int count) const {
    const Matrix& weight = *args.weight;
    const std::int64_t groups = weight.columns / Size;
    float y[kPortableRows][kTileRows] = {};
    for (std::int64_t g = 0; g < groups; ++g) {
      float weight_scales[kTileRows] = {};
      float weight_biases[kTileRows] = {};
      std::int32_t sums_of_group[kPortableRows][kTileRows] = {};
      for (int n = 0; n < count; ++n) {
        weight_scales[n] = load_element(weight.scales, weight.element_type, (row + n) * groups + g);
        weight_biases[n] = load_element(weight.biases, weight.element_type, (row + n) * groups + g);
        const std::byte* at = weight.weight + ((row + n) * groups + g) * (Size * Bits / 8);
        __builtin_prefetch(at + kPortableAheadBytes);
        std::int16_t codes[Size];
        widen_codes<Bits, Size>(at, codes);
        for (int r = 0; r < rows; ++r) {
          sums_of_group[r][n] = dot<Size>(codes, q + r * weight.columns + g * Size);
        }
      }
      for (int r = 0; r < rows; ++r) {
        float totals[kTileRows];
        float factors[kTileRows];
        float x_sums[kTileRows];
        for (int n = 0; n < kTileRows; ++n) totals[n] = static_cast<float>(sums_of_group[r][n]);
        for (int n = 0; n < kTileRows; ++n) factors[n] = weight_scales[n] * scales[r][g];
        for (int n = 0; n < kTileRows; ++n) x_sums[n] = sums[r][g];
        fused_multiply_add(totals, factors, y[r]);
        fused_multiply_add(weight_biases, x_sums, y[r]);
      }
    }
    for (int r = 0; r < rows; ++r) {
      std::memcpy(args.out + (first + r) * args.out_stride + row, y[r],
                  static_cast<std::size_t>(count) * sizeof(float));
    }
  }
};

inline std::size_t portable_scratch_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(columns) * 2 * kPortableRows;
}

template <int Bits, int Size>
void portable_affine_group(const MatmulArgs& args) {
  const QuantizedRows& x = *args.x;
  auto* q = reinterpret_cast<std::int16_t*>(args.scratch);
  for (std::int64_t first = 0; first < args.row_count; first += kPortableRows) {
    const std::int64_t left = args.row_count - first;
    PortableBlock block{args, first, left < kPortableRows ? static_cast<int>(left) : kPortableRows, q, {}, {}};
    for (int r = 0; r < block.rows; ++r) {
      const std::int64_t row = args.row_index != nullptr ? args.row_index[first + r] : first + r;
      join_halves(x, row, q + r * x.columns);
      block.scales[r] = x.scales + row * x.groups();
      block.sums[r] = x.sums + row * x.groups();
    }
    for (std::int64_t n = args.row_begin; n < args.row_end; n += kRowTile) {
      const std::int64_t rest = args.row_end - n;
      block.multiply<Bits, Size>(n, rest < kRowTile ? static_cast<int>(rest) : kTileRows);
    }
  }
}

template <int Bits>
void portable_affine_bits(const MatmulArgs& args) {
  switch (args.weight->group_size) {
    case 32:
      return portable_affine_group<Bits, 32>(args);
    case 64:
      return portable_affine_group<Bits, 64>(args);
    default:
      return portable_affine_group<Bits, 128>(args);
  }
}

inline void portable_affine(const MatmulArgs& args) {
  if (args.weight->format == MatrixFormat::affine4) {
    portable_affine_bits<4>(args);
  } else {
    portable_affine_bits<8>(args);
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
