// cpu/matmul/one_row_avx512.h -- one activation row (decode) times an affine matrix with AVX-512.
//
// Decode must keep up with memory, so the codes are not transposed: a vector is 64 bytes of one weight row. Rows are
// read four at a time, nearly in address order, while prefetching some KB ahead; lane sums of 16 rows are collected in
// the first-level cache, then added up and transposed together. Per group the sums are the same integers, and the group
// is finished the same way, as in matmul/affine.h.
#pragma once

#include "cpu/matmul/affine.h"
#include "cpu/matmul/vectors_avx512.h"

namespace lily::cpu {
namespace {

// The row's halves in the order in which 64 bytes of codes are unpacked: for each chunk of 64 code bytes
// [high, low][even columns, odd columns (4 bits only)][64].
template <int Bits>
struct OneRow {
  static constexpr int parts = Bits == 4 ? 2 : 1;
  static constexpr std::int64_t chunk_columns = 64 * parts;
  static constexpr std::int64_t chunk_bytes = 2 * 64 * parts;
};

// Up to 64 of the bytes at p, zeros behind them.
inline __m512i load_bytes_avx512(const void* p, std::int64_t count) {
  if (count >= 64) return _mm512_loadu_si512(p);
  if (count <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi8((std::uint64_t{1} << count) - 1, p);
}

template <int Bits>
inline void order_half(const std::int8_t* x, std::int64_t left, std::int8_t* out) {
  const __m512i first = load_bytes_avx512(x, left);
  if constexpr (Bits == 8) {
    _mm512_storeu_si512(out, first);
  } else {
    const __m512i second = load_bytes_avx512(x + 64, left - 64);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    _mm512_storeu_si512(out, _mm512_permutex2var_epi32(first, even, second));
    _mm512_storeu_si512(out + 64, _mm512_permutex2var_epi32(first, odd, second));
  }
}

template <int Bits>
inline void order_row(const BlockInput<1>& input, std::int64_t columns, std::int8_t* out) {
  for (std::int64_t k = 0; k < columns; k += OneRow<Bits>::chunk_columns) {
    order_half<Bits>(input.high[0] + k, columns - k, out);
    order_half<Bits>(input.low[0] + k, columns - k, out + OneRow<Bits>::chunk_bytes / 2);
    out += OneRow<Bits>::chunk_bytes;
  }
}

// Lanes of sums of code * q of one weight row, for a chunk.
template <int Bits>
inline __m512i chunk_lanes(__m512i codes, const __m512i (&high)[2], const __m512i (&low)[2]) {
  __m512i sum = _mm512_setzero_si512();
  if constexpr (Bits == 4) {
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i even = _mm512_and_si512(codes, mask);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(codes, 4), mask);
    sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, high[0]), odd, high[1]);
    sum = _mm512_slli_epi32(sum, 8);
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, low[0]), odd, low[1]);
  } else {
    sum = _mm512_slli_epi32(_mm512_dpbusd_epi32(sum, codes, high[0]), 8);
    return _mm512_dpbusd_epi32(sum, codes, low[0]);
  }
}

// a + b of 128-bit parts: with Parts (0, 2) and (1, 3) of each.
inline __m512i add_part_pairs(__m512i a, __m512i b) {
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// Four rows' lanes: in each 128-bit part the four rows' sums of that part.
inline __m512i add_four_rows(const __m512i (&rows)[4]) {
  const __m512i first =
      _mm512_add_epi32(_mm512_unpacklo_epi32(rows[0], rows[1]), _mm512_unpackhi_epi32(rows[0], rows[1]));
  const __m512i second =
      _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2], rows[3]), _mm512_unpackhi_epi32(rows[2], rows[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second), _mm512_unpackhi_epi64(first, second));
}

// quads[i]: rows 4i to 4i + 3 in each part. out: the 16 rows' sums of each group of the chunk.
template <int GroupLanes>
inline void add_parts(const __m512i (&quads)[4], __m512i (&out)[16 / GroupLanes]) {
  if constexpr (GroupLanes == 4) {
    const __m512i low01 = _mm512_shuffle_i32x4(quads[0], quads[1], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(quads[0], quads[1], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(quads[2], quads[3], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(quads[2], quads[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    out[1] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    out[2] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    out[3] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  } else {
    const __m512i first = add_part_pairs(quads[0], quads[1]);
    const __m512i second = add_part_pairs(quads[2], quads[3]);
    if constexpr (GroupLanes == 8) {
      out[0] = _mm512_shuffle_i32x4(first, second, 0x88);
      out[1] = _mm512_shuffle_i32x4(first, second, 0xdd);
    } else {
      out[0] = add_part_pairs(first, second);
    }
  }
}

// Four rows times the activation row: for each chunk, in each 128-bit part the four rows' sums of that part, at
// out[kQuads * chunk]. The four rows lie one behind the other, and so do the bytes to fetch, from `ahead` on.
inline constexpr int kQuads = kTileRows / 4;

// `bytes` (64 in whole chunks) of code bytes of the four rows at `offset`.
template <int Bits>
[[gnu::always_inline]] inline __m512i chunk_quad(const StridedRows& rows, std::int64_t offset, std::int64_t bytes,
                                                 const std::int8_t* x) {
  constexpr int parts = OneRow<Bits>::parts;
  __m512i high[2] = {};
  __m512i low[2] = {};
  unrolled<parts>([&](auto p) {
    high[p] = _mm512_loadu_si512(x + 64 * p);
    low[p] = _mm512_loadu_si512(x + 64 * (parts + p));
  });
  __m512i lanes[4];
  unrolled<4>([&](auto r) { lanes[r] = chunk_lanes<Bits>(load_bytes_avx512(rows.at(r) + offset, bytes), high, low); });
  return add_four_rows(lanes);
}

template <int Bits>
inline void quad_lanes(const StridedRows& rows, const std::int8_t* x, const std::byte* ahead, __m512i* out) {
  std::int64_t offset = 0;
  for (; offset + 64 <= rows.stride; offset += 64) {
    unrolled<4>([&](auto line) { fetch_ahead(ahead + 64 * line); });
    ahead += 4 * 64;
    _mm512_store_si512(out, chunk_quad<Bits>(rows, offset, 64, x));
    x += OneRow<Bits>::chunk_bytes;
    out += kQuads;
  }
  if (offset == rows.stride) return;
  unrolled<4>([&](auto line) { fetch_ahead(ahead + 64 * line); });
  _mm512_store_si512(out, chunk_quad<Bits>(rows, offset, rows.stride - offset, x));
}

// The 16 outputs of a tile from its sums of lanes, [chunks][kQuads].
template <int Bits, int GroupLanes>
inline __m512 finish_tile(const Matrix& weight, const __m512i* lanes, const UnitScratch& unit,
                          const BlockInput<1>& input) {
  constexpr std::int64_t chunk_groups = 16 / GroupLanes;
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::int64_t groups = weight.columns / weight.group_size;
  const std::int64_t group_chunks = weight.group_size * Bits > 512 ? 2 : 1;  // 8 bits in groups of 128
  __m512 y = _mm512_setzero_ps();
  __m512i before = _mm512_setzero_si512();  // sums of the group's first chunk
  std::int64_t g = 0;
  for (std::int64_t offset = 0, chunk = 1; offset < row_bytes; offset += 64, ++chunk) {
    const __m512i quads[kQuads] = {lanes[0], lanes[1], lanes[2], lanes[3]};
    lanes += kQuads;
    __m512i sums[chunk_groups];
    add_parts<GroupLanes>(quads, sums);
    if (chunk % group_chunks != 0) {
      before = sums[0];
      continue;
    }
    sums[0] = _mm512_add_epi32(sums[0], before);
    unrolled<chunk_groups>([&](auto i) {
      if (g < groups) {
        const std::int64_t at = g * kTileRows;
        y = finish_group<Avx512>(sums[i], unit.scales + at, unit.biases + at, input.scales[0][g], input.sums[0][g], y);
      }
      ++g;
    });
    before = _mm512_setzero_si512();
  }
  return y;
}

// Full tiles only; returns the row after the last of them.
template <int Bits, int GroupLanes>
std::int64_t one_row_tiles(const MatmulArgs& args, const UnitScratch& unit) {
  const Matrix& weight = *args.weight;
  const BlockInput<1> input = block_input<1>(args, 0);
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::int64_t chunks = (row_bytes + 63) / 64;
  // There are no unpacked codes: their place holds the ordered activations and the sums of lanes.
  auto* x = reinterpret_cast<std::int8_t*>(unit.codes);
  auto* lanes = reinterpret_cast<__m512i*>(x + chunks * OneRow<Bits>::chunk_bytes);
  order_row<Bits>(input, weight.columns, x);
  const ReadAhead ahead(args);
  std::int64_t row = args.row_begin;
  for (; row + kRowTile <= args.row_end; row += kRowTile) {
    ahead.fetch_scales(row);
    unpack_tile_scales<Avx512>(weight, row, 0, unit);
    for (int quad = 0; quad < kQuads; ++quad) {
      const StridedRows rows{weight.weight + (row + 4 * quad) * row_bytes, row_bytes};
      quad_lanes<Bits>(rows, x, ahead.codes(rows.base), lanes + quad);
    }
    _mm512_storeu_ps(args.out + row, finish_tile<Bits, GroupLanes>(weight, lanes, unit, input));
  }
  return row;
}

inline void one_row_avx512(const MatmulArgs& args) {
  const UnitScratch unit = unit_scratch(args.scratch, *args.weight);
  const std::int32_t group_size = args.weight->group_size;
  if (args.weight->format == MatrixFormat::affine4) {
    const std::int64_t row = group_size == 32   ? one_row_tiles<4, 4>(args, unit)
                             : group_size == 64 ? one_row_tiles<4, 8>(args, unit)
                                                : one_row_tiles<4, 16>(args, unit);
    many_rows<Avx512, 4>(args, row, unit);
  } else {
    const std::int64_t row = group_size == 32 ? one_row_tiles<8, 8>(args, unit) : one_row_tiles<8, 16>(args, unit);
    many_rows<Avx512, 8>(args, row, unit);
  }
}

inline void matmul_affine_avx512(const MatmulArgs& args) {
  if (args.row_count == 1) {
    one_row_avx512(args);
  } else {
    matmul_affine<Avx512>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
