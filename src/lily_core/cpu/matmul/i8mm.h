// cpu/matmul/i8mm.h -- affine weights times activation rows whose halves lie side by side, with 8-bit matrix products.
#pragma once

#include "cpu/matmul/affine.h"
#include "cpu/matmul/vectors_i8mm.h"

namespace lily::cpu {
namespace {

inline constexpr std::int64_t kPairedRows = 64;  // activation rows that are held at once

// A stride for the chunks of a row, like row_stride.
inline std::int64_t paired_stride(std::int64_t columns) { return row_stride(2 * columns); }

// Of kPairedRows rows: chunks, then scales and sums. A group has 32 columns at least.
inline std::int64_t paired_bytes(std::int64_t columns) {
  return kPairedRows * (paired_stride(columns) + 2 * (columns / 32) * static_cast<std::int64_t>(sizeof(float)));
}

inline std::size_t i8mm_scratch_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(unit_scratch_bytes(columns) + paired_bytes(columns));
}

// A row's halves to chunks. The columns of a chunk are those of 8 bytes in natural order, and in nibble order those of
// the low or of the high nibbles of two words.
template <int Bits>
inline void pair_halves(const std::int8_t* high, const std::int8_t* low, std::int64_t columns, std::int8_t* chunks) {
  for (std::int64_t c = 0; c < columns; c += 16) {
    const int32x4_t upper = vreinterpretq_s32_s8(vld1q_s8(high + c));
    const int32x4_t lower = vreinterpretq_s32_s8(vld1q_s8(low + c));
    if constexpr (Bits == 4) {
      vst1q_s8(chunks + 2 * c, vreinterpretq_s8_s32(vuzp1q_s32(upper, lower)));
      vst1q_s8(chunks + 2 * c + 16, vreinterpretq_s8_s32(vuzp2q_s32(upper, lower)));
    } else {
      vst1q_s8(chunks + 2 * c, vreinterpretq_s8_s32(I8mm::lower_pair(upper, lower)));
      vst1q_s8(chunks + 2 * c + 16, vreinterpretq_s8_s32(I8mm::upper_pair(upper, lower)));
    }
  }
}

// Inputs [first, first + count) of the call in `memory`, as I8mm takes them.
template <int Bits>
inline QuantizedRows pair_rows(const MatmulArgs& args, std::int64_t first, std::int64_t count, std::byte* memory) {
  const QuantizedRows& x = *args.x;
  const std::int64_t groups = x.columns / x.group_size;
  QuantizedRows paired = x;
  paired.rows = count;
  paired.stride = paired_stride(x.columns);
  paired.high = reinterpret_cast<std::int8_t*>(memory);
  paired.low = paired.high;
  paired.scales = reinterpret_cast<float*>(paired.high + count * paired.stride);
  paired.sums = paired.scales + count * groups;
  for (std::int64_t m = 0; m < count; ++m) {
    const std::int64_t row = args.row_index != nullptr ? args.row_index[first + m] : first + m;
    pair_halves<Bits>(x.high + row * x.stride, x.low + row * x.stride, x.columns, paired.high + m * paired.stride);
    const auto bytes = static_cast<std::size_t>(groups) * sizeof(float);
    std::memcpy(paired.scales + m * groups, x.scales + row * groups, bytes);
    std::memcpy(paired.sums + m * groups, x.sums + row * groups, bytes);
  }
  return paired;
}

// Neighbouring weight rows, a pointer for each.
struct HeldRows {
  static constexpr int count = 8;
  static constexpr int vectors = count / I8mm::lanes;
  const std::byte* rows[count];
  [[nodiscard]] const std::byte* at(int row) const { return rows[row]; }
};

// Rows activation rows times the HeldRows from first_row on of a full tile, codes straight from the checkpoint. A
// function of its own: its pointers need all registers.
template <int Bits, int Rows>
[[gnu::noinline]] void few_rows_i8mm(const MatmulArgs& args, std::int64_t first_row, const UnitScratch& unit,
                                     const BlockInput<Rows>& input) {
  const Matrix& weight = *args.weight;
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::int64_t group_bytes = weight.group_size * Bits / 8;
  HeldRows rows;
  unrolled<HeldRows::count>([&](auto r) { rows.rows[r] = weight.weight + (first_row + r) * row_bytes; });
  float32x4_t y[Rows][HeldRows::vectors];
  const std::int8_t* x[Rows];
  unrolled<Rows>([&](auto r) {
    x[r] = input.high[r];
    unrolled<HeldRows::vectors>([&](auto v) { y[r][v] = I8mm::zero(); });
  });
  const std::byte* ahead = rows.at(0) + kTileRows * row_bytes + kPrefetchDistance;
  std::int64_t at = first_row % kTileRows;  // of the group's scales
  for (std::int64_t group = 0, offset = 0; offset < row_bytes; ++group, at += kTileRows) {
    prefetch_bytes(ahead, group_bytes * HeldRows::count);
    ahead += group_bytes * HeldRows::count;
    I8mm::Sums sums[Rows][HeldRows::vectors] = {};
    for (const std::int64_t end = offset + group_bytes; offset < end; offset += kQuadBytes) {
      unrolled<HeldRows::vectors>([&](auto v) {
        int32x4_t codes[Bits == 4 ? 8 : 4];
        I8mm::load_codes<Bits>(rows, offset, v * I8mm::lanes, codes);
        unrolled<Rows>([&](auto r) { I8mm::add_quad<Bits>(sums[r][v], codes, x[r]); });
      });
      unrolled<Rows>([&](auto r) { x[r] += 2 * kQuadColumns<Bits>; });
    }
    unrolled<Rows>([&](auto r) {
      unrolled<HeldRows::vectors>([&](auto v) {
        const float* scales = unit.scales + at + v * I8mm::lanes;
        const float* biases = unit.biases + at + v * I8mm::lanes;
        y[r][v] = finish_group<I8mm>(I8mm::total(sums[r][v]), scales, biases, input.scales[r][group],
                                     input.sums[r][group], y[r][v]);
      });
    });
  }
  unrolled<Rows>([&](auto r) {
    float* out = args.out + r * args.out_stride + first_row;
    unrolled<HeldRows::vectors>([&](auto v) { I8mm::store(out + v * I8mm::lanes, y[r][v]); });
  });
}

// Full tiles only; returns the row after the last of them.
template <int Bits, int Rows>
std::int64_t few_tiles_i8mm(const MatmulArgs& args, const UnitScratch& unit) {
  const BlockInput<Rows> input = block_input<Rows>(args, 0);
  std::int64_t row = args.row_begin;
  for (; row + kRowTile <= args.row_end; row += kRowTile) {
    prefetch_next_scales(*args.weight, row);
    unpack_tile_scales<I8mm>(*args.weight, row, 0, unit);
    for (int r = 0; r < kTileRows; r += HeldRows::count) few_rows_i8mm<Bits, Rows>(args, row + r, unit, input);
  }
  return row;
}

template <int Bits>
void paired_product(const MatmulArgs& args, const UnitScratch& unit) {
  std::int64_t row = args.row_begin;
  if (args.row_count == 1) {
    row = few_tiles_i8mm<Bits, 1>(args, unit);
  } else if (args.row_count == 2) {
    row = few_tiles_i8mm<Bits, 2>(args, unit);
  } else if (args.row_count == 3) {
    row = few_tiles_i8mm<Bits, 3>(args, unit);
  } else if (args.row_count == 4) {
    row = few_tiles_i8mm<Bits, 4>(args, unit);
  }
  many_rows<I8mm, Bits>(args, row, unit);
}

template <int Bits>
void matmul_affine_i8mm_bits(const MatmulArgs& args) {
  const UnitScratch unit = unit_scratch(args.scratch, *args.weight);
  std::byte* const memory = args.scratch + unit_scratch_bytes(args.weight->columns);
  // Parts as even as can be.
  const std::int64_t parts = (args.row_count + kPairedRows - 1) / kPairedRows;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t first = args.row_count * part / parts;
    const std::int64_t count = args.row_count * (part + 1) / parts - first;
    const QuantizedRows paired = pair_rows<Bits>(args, first, count, memory);
    MatmulArgs some = args;
    some.x = &paired;
    some.row_index = nullptr;
    some.row_count = count;
    some.out = args.out + first * args.out_stride;
    paired_product<Bits>(some, unit);
  }
}

inline void matmul_affine_i8mm(const MatmulArgs& args) {
  if (args.weight->format == MatrixFormat::affine4) {
    matmul_affine_i8mm_bits<4>(args);
  } else {
    matmul_affine_i8mm_bits<8>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
