// cpu/matmul/unpack.h -- a tile's codes and scales, transposed from the checkpoint's rows so that the lanes of a
// vector are the weight rows: no dot product then needs a horizontal sum.
#pragma once

#include "cpu/matmul/read_ahead.h"

namespace lily::cpu {
namespace {

// Transpose 16 bytes of each row: out[j] holds the j-th 32-bit word of Isa::lanes rows from first_row on.
template <class Isa, class Rows>
inline void load_quad(const Rows& rows, std::int64_t offset, int first_row, typename Isa::Int (&out)[4]) {
  typename Isa::Int mixed[4];  // rows r, r + 4, r + 8 ... of 16 bytes each
  unrolled<4>([&](auto r) { mixed[r] = Isa::load_rows(rows, offset, first_row + r); });
  Isa::transpose_words(mixed, out);
}

// The codes of 16 bytes of Isa::lanes rows from first_row on, in the order that Isa multiplies them in.
template <class Isa, int Bits, class Rows>
inline void load_codes(const Rows& rows, std::int64_t offset, int first_row,
                       typename Isa::Int (&codes)[Bits == 4 ? 8 : 4]) {
  if constexpr (requires { Isa::template load_codes<Bits>(rows, offset, first_row, codes); }) {
    Isa::template load_codes<Bits>(rows, offset, first_row, codes);
  } else {
    typename Isa::Int words[4];
    load_quad<Isa>(rows, offset, first_row, words);
    Isa::template unpack<Bits>(words, codes);
  }
}

// The share of a tile at `ahead` that is fetched while the quad at `offset` is unpacked.
inline void fetch_quad(const std::byte* ahead, std::int64_t offset) {
  unrolled<kTileRows * kQuadBytes / 64>([&](auto line) { fetch_ahead(ahead + offset * kTileRows + 64 * line); });
}

// codes: [columns / 4][16][4] bytes, columns in ColumnOrder::nibble (4 bits) or natural (8 bits), or what load_codes of
// the instruction set makes of them. As many bytes from `ahead` on are fetched meanwhile, unless it is nullptr.
template <class Isa, int Bits, class Rows>
inline void unpack_codes(const Rows& rows, std::int64_t row_bytes, std::uint8_t* codes, const std::byte* ahead) {
  constexpr int steps = Bits == 4 ? 8 : 4;  // of a quad
  for (std::int64_t offset = 0; offset < row_bytes; offset += kQuadBytes) {
    if (ahead != nullptr) fetch_quad(ahead, offset);
    for (int first_row = 0; first_row < kTileRows; first_row += Isa::lanes) {
      typename Isa::Int unpacked[steps];
      load_codes<Isa, Bits>(rows, offset, first_row, unpacked);
      unrolled<steps>([&](auto s) { Isa::store(codes + s * kStepBytes + 4 * first_row, unpacked[s]); });
    }
    codes += steps * kStepBytes;
  }
}

// One quad of scales: 8 groups of 16-bit values or 4 of float32. out: [groups][16].
template <class Isa, class Rows>
inline void unpack_scale_quad(const Rows& rows, std::int64_t offset, ElementType type, float* out) {
  for (int first_row = 0; first_row < kTileRows; first_row += Isa::lanes) {
    typename Isa::Int words[4];
    load_quad<Isa>(rows, offset, first_row, words);
    unrolled<4>([&](auto j) {
      if (type == ElementType::float32) {
        Isa::store(out + j * kTileRows + first_row, Isa::bits_to_float(words[j]));
      } else {
        const bool brain = type == ElementType::bfloat16;
        Isa::store(out + 2 * j * kTileRows + first_row, Isa::even_half_to_float(words[j], brain));
        Isa::store(out + (2 * j + 1) * kTileRows + first_row, Isa::odd_half_to_float(words[j], brain));
      }
    });
  }
}

// out: [padded_groups][16]; what lies behind the last group is finite and not used.
template <class Isa, class Rows>
inline void unpack_scales(const Rows& rows, std::int64_t groups, ElementType type, float* out) {
  const std::int64_t row_bytes = groups * element_size(type);
  const std::int64_t quad_groups = kQuadBytes / element_size(type);
  std::int64_t offset = 0;
  for (; offset + kQuadBytes <= row_bytes; offset += kQuadBytes) {
    unpack_scale_quad<Isa>(rows, offset, type, out);
    out += quad_groups * kTileRows;
  }
  if (offset == row_bytes) return;
  std::byte tail[kTileRows * kQuadBytes] = {};
  for (int r = 0; r < kTileRows; ++r) {
    std::memcpy(tail + r * kQuadBytes, rows.at(r) + offset, static_cast<std::size_t>(row_bytes - offset));
  }
  unpack_scale_quad<Isa>(StridedRows{tail, kQuadBytes}, 0, type, out);
}

// The scales and biases of the tile that begins at weight row `row`, into slot `slot` of the unit.
template <class Isa>
inline void unpack_tile_scales(const Matrix& weight, std::int64_t row, std::int64_t slot, const UnitScratch& unit) {
  const std::int64_t groups = weight.columns / weight.group_size;
  const std::int64_t stride = groups * element_size(weight.element_type);
  const std::int64_t left = weight.rows - row;
  const int last = static_cast<int>(left < kRowTile ? left : kRowTile) - 1;
  const ClampedRows scales{weight.scales + row * stride, stride, last};
  const ClampedRows biases{weight.biases + row * stride, stride, last};
  unpack_scales<Isa>(scales, groups, weight.element_type, unit.scales + slot * unit.scale_count);
  unpack_scales<Isa>(biases, groups, weight.element_type, unit.biases + slot * unit.scale_count);
}

inline void prefetch_bytes(const std::byte* p, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += 64) __builtin_prefetch(p + i);
}

// Fetch the scales and biases of the tile behind the one at `row`.
inline void prefetch_next_scales(const Matrix& weight, std::int64_t row) {
  const std::int64_t stride = weight.columns / weight.group_size * element_size(weight.element_type);
  prefetch_bytes(weight.scales + (row + kRowTile) * stride, kTileRows * stride);
  prefetch_bytes(weight.biases + (row + kRowTile) * stride, kTileRows * stride);
}

template <class Isa, int Bits>
inline void unpack_tile(const Matrix& weight, std::int64_t row, std::int64_t slot, const UnitScratch& unit,
                        const std::byte* ahead = nullptr) {
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::byte* base = weight.weight + row * row_bytes;
  std::uint8_t* codes = unit.codes + slot * unit.code_bytes;
  const std::int64_t left = weight.rows - row;
  if (left >= kRowTile) {
    unpack_codes<Isa, Bits>(StridedRows{base, row_bytes}, row_bytes, codes, ahead);
  } else {
    unpack_codes<Isa, Bits>(ClampedRows{base, row_bytes, static_cast<int>(left) - 1}, row_bytes, codes, ahead);
  }
  unpack_tile_scales<Isa>(weight, row, slot, unit);
}

}  // namespace
}  // namespace lily::cpu
