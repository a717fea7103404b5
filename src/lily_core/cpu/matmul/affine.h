// cpu/matmul/affine.h -- affine weights times block fixed-point activations, for vector instruction sets.
//
// Few rows (decode): the codes go from the checkpoint to the dot products in registers.
// Many rows (prefill): two tiles are unpacked into the scratch once, then blocks of rows run over them.
// Both sum a group exactly and finish it with the same two fused multiply-adds (cpu/kernels.h).
#pragma once

#include "cpu/matmul/read_ahead.h"
#include "cpu/matmul/unpack.h"

namespace lily::cpu {
namespace {

// y += scale * x_scale * group_sum + bias * x_sum, for Isa::lanes weight rows.
template <class Isa>
inline typename Isa::Float finish_group(typename Isa::Int group_sum, const float* scales, const float* biases,
                                        float x_scale, float x_sum, typename Isa::Float y) {
  const auto factor = Isa::multiply(Isa::load(scales), Isa::broadcast(x_scale));
  y = Isa::fma(Isa::to_float(group_sum), factor, y);
  return Isa::fma(Isa::load(biases), Isa::broadcast(x_sum), y);
}

// Store the lanes [0, count) of y.
template <class Isa>
inline void store_lanes(float* out, typename Isa::Float y, std::int64_t count) {
  if (count >= Isa::lanes) {
    Isa::store(out, y);
  } else if (count > 0) {
    alignas(64) float lanes[Isa::lanes];
    Isa::store(lanes, y);
    std::memcpy(out, lanes, static_cast<std::size_t>(count) * sizeof(float));
  }
}

// Prefetch distance in bytes: tiles are contiguous.
inline constexpr std::int64_t kPrefetchDistance = 4096;

// Rows activation rows times one full tile, codes straight from the checkpoint.
template <class Isa, int Bits, int Rows>
inline void few_rows_tile(const MatmulArgs& args, std::int64_t row, const UnitScratch& unit,
                          const BlockInput<Rows>& input) {
  const Matrix& weight = *args.weight;
  const std::int64_t row_bytes = weight.columns * Bits / 8;
  const std::int64_t group_bytes = weight.group_size * Bits / 8;
  const std::int64_t groups = weight.columns / weight.group_size;
  const StridedRows rows{weight.weight + row * row_bytes, row_bytes};
  for (int first_row = 0; first_row < kTileRows; first_row += Isa::lanes) {
    typename Isa::Float y[Rows];
    unrolled<Rows>([&](auto r) { y[r] = Isa::zero(); });
    const std::byte* ahead = rows.at(first_row) + kTileRows * row_bytes + kPrefetchDistance;
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t b = 0; b < group_bytes * Isa::lanes; b += 64) __builtin_prefetch(ahead + b);
      ahead += group_bytes * Isa::lanes;
      typename Isa::Sums sums[Rows] = {};
      std::int64_t column = g * weight.group_size;
      for (std::int64_t b = 0; b < group_bytes; b += kQuadBytes) {
        typename Isa::Int words[4];
        load_quad<Isa>(rows, g * group_bytes + b, first_row, words);
        typename Isa::Int codes[Bits == 4 ? 8 : 4];
        Isa::template unpack<Bits>(words, codes);
        unrolled<Rows>([&](auto r) {
          Isa::template add_quad<Bits>(sums[r], codes, input.high[r] + column, input.low[r] + column);
        });
        column += kQuadColumns<Bits>;
      }
      unrolled<Rows>([&](auto r) {
        const std::int64_t at = g * kTileRows + first_row;
        y[r] = finish_group<Isa>(Isa::total(sums[r]), unit.scales + at, unit.biases + at, input.scales[r][g],
                                 input.sums[r][g], y[r]);
      });
    }
    unrolled<Rows>([&](auto r) { Isa::store(args.out + r * args.out_stride + row + first_row, y[r]); });
  }
}

// Rows activation rows times Vectors vectors of Isa::lanes weight rows of the unpacked unit, from vector `first` on.
template <class Isa, int Bits, int Rows, int Vectors>
inline void block(const MatmulArgs& args, std::int64_t row, std::int64_t first_input, int first,
                  const UnitScratch& unit) {
  constexpr int tile_vectors = kTileRows / Isa::lanes;
  const Matrix& weight = *args.weight;
  const std::int64_t groups = weight.columns / weight.group_size;
  const BlockInput<Rows> input = block_input<Rows>(args, first_input);
  const std::uint8_t* codes[Vectors];
  std::int64_t scale_at[Vectors];
  typename Isa::Float y[Rows][Vectors];
  unrolled<Vectors>([&](auto v) {
    const int tile = (first + v) / tile_vectors;
    const int lane = (first + v) % tile_vectors * Isa::lanes;
    codes[v] = unit.codes + tile * unit.code_bytes + 4 * lane;
    scale_at[v] = tile * unit.scale_count + lane;
    unrolled<Rows>([&](auto r) { y[r][v] = Isa::zero(); });
  });
  for (std::int64_t g = 0; g < groups; ++g) {
    typename Isa::Int sums[Rows][Vectors];
    Isa::template group_sums<Bits, Rows, Vectors>(codes, input, g * weight.group_size, weight.group_size, sums);
    unrolled<Rows>([&](auto r) {
      unrolled<Vectors>([&](auto v) {
        const std::int64_t at = g * kTileRows + scale_at[v];
        y[r][v] = finish_group<Isa>(sums[r][v], unit.scales + at, unit.biases + at, input.scales[r][g],
                                    input.sums[r][g], y[r][v]);
      });
    });
  }
  unrolled<Vectors>([&](auto v) {
    const std::int64_t n = row + (first + v) * Isa::lanes;
    unrolled<Rows>([&](auto r) {
      store_lanes<Isa>(args.out + (first_input + r) * args.out_stride + n, y[r][v], args.row_end - n);
    });
  });
}

// Run block<Rows> with the largest Rows <= count; return Rows.
template <class Isa, int Bits, int Rows, int Vectors>
inline int block_of(const MatmulArgs& args, std::int64_t row, std::int64_t first_input, int first,
                    const UnitScratch& unit, std::int64_t count) {
  if constexpr (Rows > 1) {
    if (count < Rows) return block_of<Isa, Bits, Rows - 1, Vectors>(args, row, first_input, first, unit, count);
  }
  block<Isa, Bits, Rows, Vectors>(args, row, first_input, first, unit);
  return Rows;
}

// All activation rows times the vectors [0, vectors) of the unit; blocks of rows as even as can be.
template <class Isa, int Bits, int Vectors>
inline void unit_blocks(const MatmulArgs& args, std::int64_t row, int vectors, const UnitScratch& unit) {
  std::int64_t blocks = (args.row_count + Isa::block_rows - 1) / Isa::block_rows;
  for (std::int64_t m = 0; m < args.row_count; --blocks) {
    const std::int64_t count = (args.row_count - m + blocks - 1) / blocks;
    int used = 0;
    for (int first = 0; first < vectors; first += Vectors) {
      used = block_of<Isa, Bits, Isa::block_rows, Vectors>(args, row, m, first, unit, count);
    }
    m += used;
  }
}

template <class Isa, int Bits>
void many_rows(const MatmulArgs& args, std::int64_t row_begin, const UnitScratch& unit) {
  constexpr int tile_vectors = kTileRows / Isa::lanes;
  constexpr int unit_vectors = Isa::block_vectors > tile_vectors ? Isa::block_vectors : tile_vectors;
  constexpr std::int64_t unit_rows = unit_vectors * Isa::lanes;
  for (std::int64_t row = row_begin; row < args.row_end; row += unit_rows) {
    const int tiles = args.row_end - row > kRowTile && unit_rows > kRowTile ? 2 : 1;
    for (int t = 0; t < tiles; ++t) {
      unpack_tile<Isa, Bits>(*args.weight, row + t * kRowTile, t, unit,
                             fetch_tile(args, row + unit_rows + t * kRowTile));
    }
    if (tiles * tile_vectors % Isa::block_vectors == 0) {
      unit_blocks<Isa, Bits, Isa::block_vectors>(args, row, tiles * tile_vectors, unit);
    } else {
      unit_blocks<Isa, Bits, 1>(args, row, tiles * tile_vectors, unit);
    }
  }
}

// Full tiles only; returns the row after the last of them.
template <class Isa, int Bits, int Rows>
std::int64_t few_rows(const MatmulArgs& args, const UnitScratch& unit) {
  const BlockInput<Rows> input = block_input<Rows>(args, 0);
  std::int64_t row = args.row_begin;
  for (; row + kRowTile <= args.row_end; row += kRowTile) {
    prefetch_next_scales(*args.weight, row);
    unpack_tile_scales<Isa>(*args.weight, row, 0, unit);
    few_rows_tile<Isa, Bits, Rows>(args, row, unit, input);
  }
  return row;
}

template <class Isa, int Bits>
void matmul_affine_bits(const MatmulArgs& args) {
  const UnitScratch unit = unit_scratch(args.scratch, *args.weight);
  std::int64_t row = args.row_begin;
  if (args.row_count == 1) {
    row = few_rows<Isa, Bits, 1>(args, unit);
  } else if (args.row_count == 2) {
    row = few_rows<Isa, Bits, 2>(args, unit);
  } else if (Isa::few_rows > 2 && args.row_count == 3) {
    row = few_rows<Isa, Bits, 3>(args, unit);
  } else if (Isa::few_rows > 2 && args.row_count == 4) {
    row = few_rows<Isa, Bits, 4>(args, unit);
  }
  many_rows<Isa, Bits>(args, row, unit);
}

template <class Isa>
void matmul_affine(const MatmulArgs& args) {
  if (args.row_count <= 0) return;
  if (args.weight->format == MatrixFormat::affine4) {
    matmul_affine_bits<Isa, 4>(args);
  } else {
    matmul_affine_bits<Isa, 8>(args);
  }
}

inline std::size_t affine_scratch_bytes(std::int64_t columns) {
  return static_cast<std::size_t>(unit_scratch_bytes(columns));
}

}  // namespace
}  // namespace lily::cpu
