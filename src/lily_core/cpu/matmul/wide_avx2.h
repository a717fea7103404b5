// cpu/matmul/wide_avx2.h -- affine weights times several activation rows with AVX2: vpmaddwd on 16-bit values.
//
// One instruction makes 16 exact products of a code and a whole activation, where bytes would take two, one for each
// half, and sums that must be widened. A tile's codes become int16 once for all activation rows, which are joined to
// int16 once for all tiles. A step is two columns: bits 0 and 16 of the words that codes are cut from, hence the
// columns (k, k + 4) for 4 bits and (k, k + 2) for 8, and activations are put in that order.
#pragma once

#include "cpu/matmul/affine.h"
#include "cpu/matmul/vectors_avx2.h"

namespace lily::cpu {
namespace {

inline constexpr int kWideRows = 5;                     // activation rows of a block
inline constexpr std::int64_t kWideHeldRows = 80;       // joined at once
inline constexpr std::int64_t kWideChunkColumns = 512;  // whose codes, 16 KB, stay in the first-level cache
inline constexpr int kWideVectors = kTileRows / Avx2::lanes;
inline constexpr std::int64_t kWideStepBytes = 4 * kTileRows;  // two columns of the 16 rows

// Views of the scratch.
struct WideScratch {
  std::uint8_t* codes;   // [columns / 2][16][2] int16
  std::int16_t* inputs;  // [kWideHeldRows][columns]
  float* out;            // [kWideHeldRows][16]
  UnitScratch unit;      // for the scales and biases of one tile
};

inline std::size_t wide_scratch_bytes(std::int64_t columns) {
  const std::int64_t codes = columns / 2 * kWideStepBytes;
  const std::int64_t floats = 2 * padded_groups(columns / 32) * kTileRows * 4;
  const std::int64_t wide = codes + kWideHeldRows * columns * 2 + kWideHeldRows * kTileRows * 4 + floats;
  return static_cast<std::size_t>(wide > unit_scratch_bytes(columns) ? wide : unit_scratch_bytes(columns));
}

inline WideScratch wide_scratch(std::byte* scratch, const Matrix& weight) {
  WideScratch views;
  views.codes = reinterpret_cast<std::uint8_t*>(scratch);
  views.inputs = reinterpret_cast<std::int16_t*>(scratch + weight.columns / 2 * kWideStepBytes);
  views.out = reinterpret_cast<float*>(views.inputs + kWideHeldRows * weight.columns);
  views.unit = {};
  views.unit.scale_count = padded_groups(weight.columns / weight.group_size) * kTileRows;
  views.unit.scales = views.out + kWideHeldRows * kTileRows;
  views.unit.biases = views.unit.scales + views.unit.scale_count;
  return views;
}

// 256 * high + low of a row's columns, in the order of steps.
template <int Bits>
inline void join_row(const std::int8_t* high, const std::int8_t* low, std::int64_t columns, std::int16_t* out) {
  const __m256i order = Bits == 4 ? _mm256_set1_epi64x(0x0705030106040200LL)  // from ColumnOrder::nibble
                                  : _mm256_set1_epi64x(0x0705060403010200LL);
  // The pattern of a 64-bit part, moved to the second one of each 128 bits.
  const __m256i shuffle = _mm256_add_epi8(order, _mm256_setr_epi64x(0, 0x0808080808080808LL, 0, 0x0808080808080808LL));
  for (std::int64_t k = 0; k < columns; k += 32) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + k));
    // A negative low half borrows from the high one.
    const __m256i borrow = _mm256_cmpgt_epi8(_mm256_setzero_si256(), bytes);
    const __m256i upper = _mm256_add_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(high + k)), borrow);
    const __m256i lower_ordered = _mm256_shuffle_epi8(bytes, shuffle);
    const __m256i upper_ordered = _mm256_shuffle_epi8(upper, shuffle);
    const __m256i first = _mm256_unpacklo_epi8(lower_ordered, upper_ordered);
    const __m256i second = _mm256_unpackhi_epi8(lower_ordered, upper_ordered);
    Avx2::store(reinterpret_cast<std::uint8_t*>(out + k), _mm256_permute2x128_si256(first, second, 0x20));
    Avx2::store(reinterpret_cast<std::uint8_t*>(out + k + 16), _mm256_permute2x128_si256(first, second, 0x31));
  }
}

template <int Bits, class Rows>
inline void widen_codes(const Rows& rows, std::int64_t row_bytes, std::uint8_t* codes, const std::byte* ahead) {
  constexpr int steps = 16 / Bits;  // of a word
  const __m256i mask = _mm256_set1_epi32(Bits == 4 ? 0x000f000f : 0x00ff00ff);
  for (std::int64_t offset = 0; offset < row_bytes; offset += kQuadBytes) {
    if (ahead != nullptr) fetch_quad(ahead, offset);
    for (int first_row = 0; first_row < kTileRows; first_row += Avx2::lanes) {
      __m256i words[4];
      load_quad<Avx2>(rows, offset, first_row, words);
      unrolled<4>([&](auto j) {
        unrolled<steps>([&](auto s) {
          Avx2::store(codes + (j * steps + s) * kWideStepBytes + 4 * first_row,
                      _mm256_and_si256(_mm256_srli_epi32(words[j], s * Bits), mask));
        });
      });
    }
    codes += 4 * steps * kWideStepBytes;
  }
}

template <int Bits>
inline void widen_tile(const MatmulArgs& args, std::int64_t row, const WideScratch& scratch) {
  const Matrix& weight = *args.weight;
  const std::byte* ahead = fetch_tile(args, row + kRowTile);
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::byte* base = weight.weight + row * row_bytes;
  const std::int64_t left = weight.rows - row;
  if (left >= kRowTile) {
    widen_codes<Bits>(StridedRows{base, row_bytes}, row_bytes, scratch.codes, ahead);
  } else {
    widen_codes<Bits>(ClampedRows{base, row_bytes, static_cast<int>(left) - 1}, row_bytes, scratch.codes, ahead);
  }
  unpack_tile_scales<Avx2>(weight, row, 0, scratch.unit);
}

// Groups [begin, end) of Rows activation rows times a tile. `first`: the first of them among those held, `input` in
// the call.
template <int Rows>
inline void wide_block(const MatmulArgs& args, std::int64_t begin, std::int64_t end, std::int64_t first,
                       std::int64_t input, const WideScratch& scratch) {
  const std::int64_t columns = args.weight->columns;
  const std::int64_t group_size = args.weight->group_size;
  const BlockInput<Rows> rows = block_input<Rows>(args, input);
  const std::int16_t* x[Rows];
  unrolled<Rows>([&](auto r) { x[r] = scratch.inputs + (first + r) * columns; });
  float* out = scratch.out + first * kTileRows;
  for (std::int64_t g = begin; g < end; ++g) {
    __m256i sums[Rows][kWideVectors];
    unrolled<Rows>([&](auto r) { unrolled<kWideVectors>([&](auto v) { sums[r][v] = _mm256_setzero_si256(); }); });
#pragma GCC unroll 4
    for (std::int64_t c = g * group_size; c < (g + 1) * group_size; c += 2) {
      __m256i codes[kWideVectors];
      unrolled<kWideVectors>([&](auto v) {
        const std::uint8_t* at = scratch.codes + c * (kWideStepBytes / 2) + v * 4 * Avx2::lanes;
        codes[v] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      });
      unrolled<Rows>([&](auto r) {
        const __m256i pair = Avx2::broadcast_word(reinterpret_cast<const std::int8_t*>(x[r] + c));
        unrolled<kWideVectors>(
            [&](auto v) { sums[r][v] = _mm256_add_epi32(sums[r][v], _mm256_madd_epi16(codes[v], pair)); });
      });
    }
    unrolled<Rows>([&](auto r) {
      unrolled<kWideVectors>([&](auto v) {
        const std::int64_t at = g * kTileRows + v * Avx2::lanes;
        float* y = out + r * kTileRows + v * Avx2::lanes;
        Avx2::store(y, finish_group<Avx2>(sums[r][v], scratch.unit.scales + at, scratch.unit.biases + at,
                                          rows.scales[r][g], rows.sums[r][g], g == 0 ? Avx2::zero() : Avx2::load(y)));
      });
    });
  }
}

// wide_block with the largest Rows <= count; returns Rows.
template <int Rows>
inline int wide_block_of(const MatmulArgs& args, std::int64_t begin, std::int64_t end, std::int64_t first,
                         std::int64_t input, const WideScratch& scratch, std::int64_t count) {
  if constexpr (Rows > 1) {
    if (count < Rows) return wide_block_of<Rows - 1>(args, begin, end, first, input, scratch, count);
  }
  wide_block<Rows>(args, begin, end, first, input, scratch);
  return Rows;
}

// The `count` rows that are held, inputs [first, first + count) of the call, times a tile.
inline void wide_tile(const MatmulArgs& args, std::int64_t row, std::int64_t first, std::int64_t count,
                      const WideScratch& scratch) {
  const std::int64_t groups = args.weight->columns / args.weight->group_size;
  const std::int64_t chunk = kWideChunkColumns / args.weight->group_size;
  for (std::int64_t begin = 0; begin < groups; begin += chunk) {
    const std::int64_t end = begin + chunk < groups ? begin + chunk : groups;
    // Blocks as even as can be.
    std::int64_t blocks = (count + kWideRows - 1) / kWideRows;
    for (std::int64_t m = 0; m < count; --blocks) {
      m += wide_block_of<kWideRows>(args, begin, end, m, first + m, scratch, (count - m + blocks - 1) / blocks);
    }
  }
  const std::int64_t left = args.row_end - row;
  const auto bytes = static_cast<std::size_t>(left < kRowTile ? left : kRowTile) * sizeof(float);
  for (std::int64_t m = 0; m < count; ++m) {
    std::memcpy(args.out + (first + m) * args.out_stride + row, scratch.out + m * kTileRows, bytes);
  }
}

template <int Bits>
void wide_rows(const MatmulArgs& args, std::int64_t row_begin) {
  if (row_begin >= args.row_end) return;
  const QuantizedRows& x = *args.x;
  const WideScratch scratch = wide_scratch(args.scratch, *args.weight);
  for (std::int64_t first = 0; first < args.row_count; first += kWideHeldRows) {
    const std::int64_t left = args.row_count - first;
    const std::int64_t count = left < kWideHeldRows ? left : kWideHeldRows;
    for (std::int64_t m = 0; m < count; ++m) {
      const std::int64_t input = args.row_index != nullptr ? args.row_index[first + m] : first + m;
      join_row<Bits>(x.high + input * x.stride, x.low + input * x.stride, x.columns, scratch.inputs + m * x.columns);
    }
    for (std::int64_t row = row_begin; row < args.row_end; row += kRowTile) {
      widen_tile<Bits>(args, row, scratch);
      wide_tile(args, row, first, count, scratch);
    }
  }
}

template <int Bits>
void matmul_affine_avx2_bits(const MatmulArgs& args) {
  std::int64_t row = args.row_begin;
  if (args.row_count <= 2) {
    const UnitScratch unit = unit_scratch(args.scratch, *args.weight);
    row = args.row_count == 1 ? few_rows<Avx2, Bits, 1>(args, unit) : few_rows<Avx2, Bits, 2>(args, unit);
  }
  wide_rows<Bits>(args, row);
}

inline void matmul_affine_avx2(const MatmulArgs& args) {
  if (args.row_count <= 0) return;
  if (args.weight->format == MatrixFormat::affine4) {
    matmul_affine_avx2_bits<4>(args);
  } else {
    matmul_affine_avx2_bits<8>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
