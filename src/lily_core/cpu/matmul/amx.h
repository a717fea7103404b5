// cpu/matmul/amx.h -- affine weights times many activation rows with AMX: tiles of bytes for the group sums, AVX-512
// for what finishes a group.
//
// The unpacked codes of matmul/tile.h already have the layout of a right-hand tile: four columns of 16 weight
// rows in 64 bytes. Activation rows are the left-hand factor, so a row of the product holds 16 weight rows as
// everywhere else. The high and the low halves get a product each; their sums are integers, hence the same bits.
#pragma once

#include <initializer_list>

#include "cpu/matmul/one_row_avx512.h"
#include "cpu/matmul/tile_config.h"

namespace lily::cpu {
namespace {

inline constexpr int kAmxRows = 16;       // activation rows of a block
inline constexpr int kAmxUnitTiles = 4;   // weight tiles unpacked at once: 128 KiB of codes at 2048 columns
inline constexpr int kAmxHeldBlocks = 4;  // blocks that are prepared once for all units of a call
// Fewer rows are faster without unpacking.
inline constexpr std::int64_t kAmxFewestRows = 5;
inline constexpr std::int64_t kAmxChunkGroups = 8;  // of activations that stay in the first-level cache for a unit
inline constexpr std::int64_t kAmxSumBytes = 2 * 2 * kAmxRows * kTileRows * 4;  // [turn][high, low][row][lane] int32
inline constexpr std::int64_t kAmxOutBytes = kAmxUnitTiles * kAmxRows * kTileRows * 4;

// A block of activation rows, ready for tiles.
struct AmxBlock {
  const std::int8_t* high;
  const std::int8_t* low;
  std::int64_t stride;  // bytes between rows of high and low
  const float* scales;  // [padded_groups][kAmxRows]
  const float* sums;    // [padded_groups][kAmxRows]
  std::int64_t first;
  int count;
};

// Views of the scratch.
struct AmxScratch {
  std::uint8_t* codes;      // [kAmxUnitTiles][columns / 4][16][4]
  float* scales;            // [kAmxUnitTiles][padded_groups][16]
  float* biases;            // [kAmxUnitTiles][padded_groups][16]
  std::int8_t* block_rows;  // [kAmxHeldBlocks][high, low][kAmxRows][row_stride] copies of rows that are not neighbours
  float* block_floats;      // [kAmxHeldBlocks][scales, sums][padded_groups][kAmxRows]
  std::int32_t* sums;
  float* out;                // [kAmxUnitTiles][kAmxRows][16] what the chunks so far come to
  std::int64_t code_bytes;   // between tiles
  std::int64_t scale_count;  // floats between tiles
  std::int64_t row_bytes;    // between blocks
};

inline std::size_t amx_scratch_bytes(std::int64_t columns) {
  const std::int64_t floats = padded_groups(columns / 32) * kTileRows * 4;
  const std::int64_t unit = kAmxUnitTiles * (columns / 4 * kStepBytes + 2 * floats);
  const std::int64_t blocks = kAmxHeldBlocks * (2 * kAmxRows * row_stride(columns) + 2 * floats);
  const std::int64_t bytes = unit + blocks + kAmxSumBytes + kAmxOutBytes;
  const std::int64_t few = unit_scratch_bytes(columns);
  return static_cast<std::size_t>(bytes > few ? bytes : few);
}

inline AmxScratch amx_scratch(std::byte* scratch, const Matrix& weight) {
  AmxScratch views;
  views.code_bytes = weight.columns / 4 * kStepBytes;
  views.scale_count = padded_groups(weight.columns / weight.group_size) * kTileRows;
  views.row_bytes = 2 * kAmxRows * row_stride(weight.columns);
  views.codes = reinterpret_cast<std::uint8_t*>(scratch);
  views.block_rows = reinterpret_cast<std::int8_t*>(views.codes + kAmxUnitTiles * views.code_bytes);
  views.sums = reinterpret_cast<std::int32_t*>(views.block_rows + kAmxHeldBlocks * views.row_bytes);
  views.out = reinterpret_cast<float*>(views.sums) + kAmxSumBytes / 4;
  views.scales = views.out + kAmxOutBytes / 4;
  views.biases = views.scales + kAmxUnitTiles * views.scale_count;
  views.block_floats = views.biases + kAmxUnitTiles * views.scale_count;
  return views;
}

// The rows of a block's scales or sums, for unpack_scales; the last stands in for those behind it.
struct AmxFloatRows {
  const float* rows[kAmxRows];
  [[nodiscard]] const std::byte* at(int row) const { return reinterpret_cast<const std::byte*>(rows[row]); }
};

inline bool neighbours(const std::int32_t* index, int count) {
  for (int r = 1; r < count; ++r) {
    if (index[r] != index[0] + r) return false;
  }
  return true;
}

// Activation rows [first, first + count) of the call, in slot `slot` of the scratch where they must be copied.
inline AmxBlock prepare_block(const MatmulArgs& args, std::int64_t first, int count, int slot,
                              const AmxScratch& scratch) {
  const QuantizedRows& x = *args.x;
  const std::int64_t groups = x.columns / x.group_size;
  std::int32_t own[kAmxRows];
  const std::int32_t* index = args.row_index != nullptr ? args.row_index + first : own;
  for (int r = 0; r < count; ++r) own[r] = static_cast<std::int32_t>(first) + r;
  AmxFloatRows scales;
  AmxFloatRows sums;
  for (int r = 0; r < kAmxRows; ++r) {
    const std::int64_t row = index[r < count ? r : count - 1];
    scales.rows[r] = x.scales + row * groups;
    sums.rows[r] = x.sums + row * groups;
  }
  float* floats = scratch.block_floats + 2 * slot * scratch.scale_count;
  unpack_scales<Avx512>(scales, groups, ElementType::float32, floats);
  unpack_scales<Avx512>(sums, groups, ElementType::float32, floats + scratch.scale_count);
  AmxBlock block{x.high + index[0] * x.stride,
                 x.low + index[0] * x.stride,
                 x.stride,
                 floats,
                 floats + scratch.scale_count,
                 first,
                 count};
  if (neighbours(index, count)) return block;
  std::int8_t* copy = scratch.block_rows + slot * scratch.row_bytes;
  block.stride = row_stride(x.columns);
  for (int r = 0; r < count; ++r) {
    const auto bytes = static_cast<std::size_t>(x.columns);
    std::memcpy(copy + r * block.stride, x.high + index[r] * x.stride, bytes);
    std::memcpy(copy + (kAmxRows + r) * block.stride, x.low + index[r] * x.stride, bytes);
  }
  block.high = copy;
  block.low = copy + kAmxRows * block.stride;
  return block;
}

// Tiles 0 to 3: sums of high and low halves, alternating. 4, 5: activations, high and low. 6: codes.
inline void configure_tiles(int count, std::int64_t step_columns) {
  TileConfig config;
  for (const int sums : {0, 1, 2, 3}) config.shape(sums, count, 64);
  for (const int rows : {4, 5}) config.shape(rows, count, step_columns);
  config.shape(6, step_columns / 4, 64);
  asm volatile("" ::"r"(&config) : "memory");  // the intrinsic tells GCC 12 of the first 8 bytes only
  _tile_loadconfig(&config);
}

// The sums of group g to sums [high, low][row][lane].
template <int Turn>
inline void multiply_group(const AmxBlock& x, const std::uint8_t* codes, std::int64_t column, std::int64_t columns,
                           std::int64_t step, std::int32_t* sums) {
  if constexpr (Turn == 0) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (std::int64_t c = column; c < column + columns; c += step) {
    _tile_loadd(6, codes + c * kTileRows, kStepBytes);
    _tile_loadd(4, x.high + c, x.stride);
    _tile_loadd(5, x.low + c, x.stride);
    if constexpr (Turn == 0) {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 5, 6);
    } else {
      _tile_dpbsud(2, 4, 6);
      _tile_dpbsud(3, 5, 6);
    }
  }
  if constexpr (Turn == 0) {
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kAmxRows * kTileRows, 64);
  } else {
    _tile_stored(2, sums, 64);
    _tile_stored(3, sums + kAmxRows * kTileRows, 64);
  }
}

template <int Rows>
[[gnu::always_inline]] inline void finish_groups(const AmxBlock& x, std::int64_t g, const float* scales,
                                                 const float* biases, const std::int32_t* sums, __m512 (&y)[Rows]) {
  const __m512 scale = _mm512_loadu_ps(scales + g * kTileRows);
  const __m512 bias = _mm512_loadu_ps(biases + g * kTileRows);
  const float* x_scales = x.scales + g * kAmxRows;
  const float* x_sums = x.sums + g * kAmxRows;
  unrolled<Rows>([&](auto r) {
    const __m512i high = _mm512_load_si512(sums + r * kTileRows);
    const __m512i low = _mm512_load_si512(sums + (kAmxRows + r) * kTileRows);
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
    const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(x_scales[r]));
    y[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, y[r]);
    y[r] = _mm512_fmadd_ps(bias, _mm512_set1_ps(x_sums[r]), y[r]);
  });
}

// Groups [begin, end) of a block of at most Rows activation rows times one weight tile. While a group is finished, the
// next one is in the tile unit.
template <int Rows>
inline void amx_tile(const Matrix& weight, const AmxBlock& x, int tile, std::int64_t begin, std::int64_t end,
                     const AmxScratch& scratch) {
  const std::int64_t columns = weight.group_size;
  const std::int64_t step = columns < 64 ? columns : 64;
  const std::uint8_t* codes = scratch.codes + tile * scratch.code_bytes;
  const float* scales = scratch.scales + tile * scratch.scale_count;
  const float* biases = scratch.biases + tile * scratch.scale_count;
  float* out = scratch.out + tile * kAmxRows * kTileRows;
  std::int32_t* even = scratch.sums;
  std::int32_t* odd = scratch.sums + 2 * kAmxRows * kTileRows;
  __m512 y[Rows];
  unrolled<Rows>([&](auto r) { y[r] = begin == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(out + r * kTileRows); });
  multiply_group<0>(x, codes, begin * columns, columns, step, even);
  for (std::int64_t g = begin; g < end; g += 2) {
    if (g + 1 < end) multiply_group<1>(x, codes, (g + 1) * columns, columns, step, odd);
    finish_groups<Rows>(x, g, scales, biases, even, y);
    if (g + 1 == end) break;
    if (g + 2 < end) multiply_group<0>(x, codes, (g + 2) * columns, columns, step, even);
    finish_groups<Rows>(x, g + 1, scales, biases, odd, y);
  }
  unrolled<Rows>([&](auto r) { _mm512_storeu_ps(out + r * kTileRows, y[r]); });
}

template <int Rows>
inline void amx_block(const MatmulArgs& args, std::int64_t row, int tiles, const AmxBlock& x,
                      const AmxScratch& scratch) {
  const Matrix& weight = *args.weight;
  const std::int64_t groups = weight.columns / weight.group_size;
  for (std::int64_t begin = 0; begin < groups; begin += kAmxChunkGroups) {
    const std::int64_t end = begin + kAmxChunkGroups < groups ? begin + kAmxChunkGroups : groups;
    for (int tile = 0; tile < tiles; ++tile) amx_tile<Rows>(weight, x, tile, begin, end, scratch);
  }
  for (int r = 0; r < x.count; ++r) {
    float* out = args.out + (x.first + r) * args.out_stride + row;
    for (int tile = 0; tile < tiles; ++tile) {
      const __m512 y = _mm512_loadu_ps(scratch.out + (tile * kAmxRows + r) * kTileRows);
      store_lanes<Avx512>(out + tile * kTileRows, y, args.row_end - row - tile * kTileRows);
    }
  }
}

template <int Bits>
inline void unpack_amx_unit(const MatmulArgs& args, std::int64_t row, int tiles, const AmxScratch& scratch) {
  const Matrix& weight = *args.weight;
  const UnitScratch unit{scratch.codes, scratch.scales, scratch.biases, scratch.code_bytes, scratch.scale_count};
  for (int tile = 0; tile < tiles; ++tile) {
    // The same tile of the next unit comes from memory while this one is multiplied.
    const std::byte* ahead = fetch_tile(args, row + (kAmxUnitTiles + tile) * kRowTile);
    unpack_tile<Avx512, Bits>(weight, row + tile * kRowTile, tile, unit, ahead);
  }
}

template <int Bits>
void amx_rows(const MatmulArgs& args) {
  const Matrix& weight = *args.weight;
  const AmxScratch scratch = amx_scratch(args.scratch, weight);
  const auto blocks = (args.row_count + kAmxRows - 1) / kAmxRows;
  const bool held = blocks <= kAmxHeldBlocks;
  // Blocks as even as can be: a block of 17 rows is two of 9 and 8.
  const auto begin_of = [&](std::int64_t block) { return args.row_count * block / blocks; };
  const auto prepare = [&](std::int64_t block, int slot) {
    const std::int64_t first = begin_of(block);
    return prepare_block(args, first, static_cast<int>(begin_of(block + 1) - first), slot, scratch);
  };
  AmxBlock prepared[kAmxHeldBlocks];
  for (int block = 0; held && block < blocks; ++block) prepared[block] = prepare(block, block);
  int configured = 0;
  for (std::int64_t row = args.row_begin; row < args.row_end; row += kAmxUnitTiles * kRowTile) {
    const std::int64_t left = (args.row_end - row + kRowTile - 1) / kRowTile;
    const int tiles = static_cast<int>(left < kAmxUnitTiles ? left : kAmxUnitTiles);
    unpack_amx_unit<Bits>(args, row, tiles, scratch);
    for (std::int64_t block = 0; block < blocks; ++block) {
      const AmxBlock x = held ? prepared[block] : prepare(block, 0);
      // The tile loads do not tell the compiler what memory they read.
      asm volatile("" ::: "memory");
      if (x.count != configured) configure_tiles(x.count, weight.group_size < 64 ? weight.group_size : 64);
      configured = x.count;
      if (x.count > 12) {
        amx_block<16>(args, row, tiles, x, scratch);
      } else if (x.count > 8) {
        amx_block<12>(args, row, tiles, x, scratch);
      } else {
        amx_block<8>(args, row, tiles, x, scratch);
      }
    }
  }
  _tile_release();
}

inline void matmul_affine_amx(const MatmulArgs& args) {
  if (args.row_count < kAmxFewestRows) {
    matmul_affine_avx512(args);
  } else if (args.weight->format == MatrixFormat::affine4) {
    amx_rows<4>(args);
  } else {
    amx_rows<8>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
