// cpu/matmul/tile.h -- a tile of kRowTile weight rows, how its rows are addressed, and where its unpacked form lives.
//
// Everything in cpu/matmul is internal to the translation unit that includes it (see cpu/isa/isa.h), and templates
// take an instruction set class (Avx512, Avx2, Neon) with the vector operations of matmul/vectors_*.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/matmul/unrolled.h"

namespace lily::cpu {
namespace {

inline constexpr int kTileRows = static_cast<int>(kRowTile);
// Bytes of each row that are transposed at a time: every affine row is a multiple of 16 bytes long.
inline constexpr std::int64_t kQuadBytes = 16;
// Unpacked codes: [columns / 4][kTileRows][4] bytes. One step is 4 columns of the 16 rows.
inline constexpr std::int64_t kStepBytes = 4 * kTileRows;
// Tiles unpacked at once.
inline constexpr std::int64_t kUnitTiles = 2;

// The rows of a full tile.
struct StridedRows {
  const std::byte* base;
  std::int64_t stride;  // bytes
  [[nodiscard]] const std::byte* at(int row) const { return base + row * stride; }
};

// The rows of a tile that may end early: the last row stands in for those behind it.
struct ClampedRows {
  const std::byte* base;
  std::int64_t stride;  // bytes
  int last;
  [[nodiscard]] const std::byte* at(int row) const { return base + (row < last ? row : last) * stride; }
};

template <int Bits>
inline constexpr std::int64_t kQuadColumns = kQuadBytes * 8 / Bits;

inline int element_size(ElementType type) { return type == ElementType::float32 ? 4 : 2; }

// Groups of a row, padded to what one transposition of their scales yields.
inline std::int64_t padded_groups(std::int64_t groups) { return (groups + 7) / 8 * 8; }

// Views of the scratch: for each of kUnitTiles tiles its codes [columns / 4][16][4], and its scales and biases
// [padded_groups][16] float32.
struct UnitScratch {
  std::uint8_t* codes;
  float* scales;
  float* biases;
  std::int64_t code_bytes;   // between tiles
  std::int64_t scale_count;  // floats between tiles
};

// A group has 32 columns at least.
inline std::int64_t unit_scratch_bytes(std::int64_t columns) {
  return kUnitTiles * (columns / 4 * kStepBytes + 2 * padded_groups(columns / 32) * kTileRows * 4);
}

inline UnitScratch unit_scratch(std::byte* scratch, const Matrix& weight) {
  UnitScratch unit;
  unit.code_bytes = weight.columns / 4 * kStepBytes;
  unit.scale_count = padded_groups(weight.columns / weight.group_size) * kTileRows;
  unit.codes = reinterpret_cast<std::uint8_t*>(scratch);
  unit.scales = reinterpret_cast<float*>(scratch + kUnitTiles * unit.code_bytes);
  unit.biases = unit.scales + kUnitTiles * unit.scale_count;
  return unit;
}

// The activation rows that a block multiplies.
template <int Rows>
struct BlockInput {
  const std::int8_t* high[Rows];
  const std::int8_t* low[Rows];
  const float* scales[Rows];
  const float* sums[Rows];
};

template <int Rows>
inline BlockInput<Rows> block_input(const MatmulArgs& args, std::int64_t first) {
  const QuantizedRows& x = *args.x;
  const std::int64_t groups = x.columns / x.group_size;
  BlockInput<Rows> input;
  for (int r = 0; r < Rows; ++r) {
    const std::int64_t row = args.row_index != nullptr ? args.row_index[first + r] : first + r;
    input.high[r] = x.high + row * x.stride;
    input.low[r] = x.low + row * x.stride;
    input.scales[r] = x.scales + row * groups;
    input.sums[r] = x.sums + row * groups;
  }
  return input;
}

}  // namespace
}  // namespace lily::cpu
