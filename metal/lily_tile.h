// lily_tile.h -- the matrix product of a threadgroup of four simdgroups (128 threads) on tiles in threadgroup memory.
//
//   Tile<T, ROWS, COLUMNS, DEPTH> tile;
//   tile.clear();
//   for each step of DEPTH along k:
//     fill a [ROWS, DEPTH] and b [COLUMNS, DEPTH] in threadgroup memory, then threadgroup_barrier(mem_threadgroup)
//     tile.multiply_accumulate(a, a_stride, b, b_stride, simdgroup);      // c += a b^T, sums in float
//     threadgroup_barrier(mem_threadgroup)                                // before a and b are filled again
//   tile.store_device(c, stride, rows, columns, simdgroup, lane);         // or add_device, store_threadgroup
//
// TileFragments is the part of one simdgroup, for kernels that keep their sums in registers from product to product:
// element() and set_element() reach what a lane holds, tile_row_maximum() and tile_row_sum() join the lanes of a row,
// and add_weighted() multiplies such sums, as the first factor, by rows of threadgroup memory.
//
// ROWS is 16, 32 or 64; COLUMNS a multiple of 32; DEPTH a multiple of 16. All 128 threads make every call. Strides
// count elements; a row's padding (8 elements of 16 bits, say) keeps its accesses off one bank.
// Implementations: simdgroup_matrix (any Apple GPU), and the device's own where LILY_DEVICE_TILE is defined. One for
// tensor operations fits the same calls: its scope is the same four simdgroups, its result a cooperative tensor.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "lily_common.h"

#if defined(LILY_DEVICE_TILE)
template <typename T, int FM, int FN, int DEPTH>
using TileFragments = DeviceTile<T, FM, FN, DEPTH>;
#else
// The part of one simdgroup: FM x FN fragments of 8x8.
template <typename T, int FM, int FN, int DEPTH>
struct TileFragments {
  simdgroup_matrix<float, 8, 8> sums[FM][FN];

  METAL_FUNC void clear() {
    UNROLL for (int i = 0; i < FM; i++) {
      UNROLL for (int j = 0; j < FN; j++) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  METAL_FUNC void multiply_accumulate(threadgroup const T* a, int a_stride, threadgroup const T* b, int b_stride) {
    UNROLL for (int k = 0; k < DEPTH; k += 8) {
      simdgroup_matrix<T, 8, 8> left[FM];
      simdgroup_matrix<T, 8, 8> right[FN];
      simdgroup_barrier(mem_flags::mem_none);  // keeps the compiler from loading many steps ahead, and spilling
      UNROLL for (int i = 0; i < FM; i++) simdgroup_load(left[i], a + 8 * i * a_stride + k, ulong(a_stride));
      UNROLL for (int j = 0; j < FN; j++) {
        simdgroup_load(right[j], b + 8 * j * b_stride + k, ulong(b_stride), ulong2(0, 0), true);
      }
      UNROLL for (int i = 0; i < FM; i++) {
        UNROLL for (int j = 0; j < FN; j++) simdgroup_multiply_accumulate(sums[i][j], left[i], right[j], sums[i][j]);
      }
    }
  }
  // sums += weights values, where values [DEPTH, 8 FN] lies row by row. Weights are rounded to T.
  template <int OTHER_DEPTH>
  METAL_FUNC void add_weighted(thread TileFragments<T, FM, DEPTH / 8, OTHER_DEPTH>& weights,
                               threadgroup const T* values, int stride) {
    UNROLL for (int k = 0; k < DEPTH / 8; k++) {
      simdgroup_matrix<T, 8, 8> left[FM];
      simdgroup_matrix<T, 8, 8> right[FN];
      UNROLL for (int i = 0; i < FM; i++) {
        UNROLL for (int e = 0; e < 2; e++) left[i].thread_elements()[e] = T(weights.element(i, k, e));
      }
      simdgroup_barrier(mem_flags::mem_none);
      UNROLL for (int j = 0; j < FN; j++) simdgroup_load(right[j], values + 8 * k * stride + 8 * j, ulong(stride));
      UNROLL for (int i = 0; i < FM; i++) {
        UNROLL for (int j = 0; j < FN; j++) simdgroup_multiply_accumulate(sums[i][j], left[i], right[j], sums[i][j]);
      }
    }
  }
  // The element of fragment (i, j) that this lane holds in column `tile_fragment_column(lane) + e`.
  METAL_FUNC float element(int i, int j, int e) { return sums[i][j].thread_elements()[e]; }
  METAL_FUNC void set_element(int i, int j, int e, float value) { sums[i][j].thread_elements()[e] = value; }
  // Multiplies what this lane holds of the fragments (i, all j), which is of one row.
  METAL_FUNC void scale(int i, float factor) {
    UNROLL for (int j = 0; j < FN; j++) sums[i][j].thread_elements() *= factor;
  }
};

METAL_FUNC int tile_fragment_row(uint lane) { return int(((lane >> 4) & 1u) * 4u + ((lane >> 1) & 3u)); }
METAL_FUNC int tile_fragment_column(uint lane) { return int(((lane >> 3) & 1u) * 4u + (lane & 1u) * 2u); }
// The four lanes that hold a fragment's row differ in these two bits.
constant constexpr ushort kTileRowBit = 1;
constant constexpr ushort kTileOtherRowBit = 8;
#endif

// Over the lanes that hold a row.
METAL_FUNC float tile_row_maximum(float value) {
  value = max(value, simd_shuffle_xor(value, kTileRowBit));
  return max(value, simd_shuffle_xor(value, kTileOtherRowBit));
}
METAL_FUNC float tile_row_sum(float value) {
  value += simd_shuffle_xor(value, kTileRowBit);
  return value + simd_shuffle_xor(value, kTileOtherRowBit);
}

// SPLIT: how many simdgroups share the rows; the others share the columns.
template <typename T, int ROWS, int COLUMNS, int DEPTH, int SPLIT = (ROWS < 32 ? 1 : 2)>
struct Tile {
  static_assert(ROWS % (8 * SPLIT) == 0 && COLUMNS % 32 == 0 && DEPTH % 16 == 0, "unsupported tile shape");
  TileFragments<T, ROWS / (8 * SPLIT), COLUMNS * SPLIT / 32, DEPTH> fragments;

  METAL_FUNC void clear() { fragments.clear(); }

  METAL_FUNC void multiply_accumulate(threadgroup const T* a, int a_stride, threadgroup const T* b, int b_stride,
                                      uint simdgroup) {
    fragments.multiply_accumulate(a + first_row(simdgroup) * a_stride, a_stride,
                                  b + first_column(simdgroup) * b_stride, b_stride);
  }

  // All ROWS x COLUMNS sums to threadgroup memory.
  METAL_FUNC void store_threadgroup(threadgroup float* c, int stride, uint simdgroup, uint lane) {
    const int row = first_row(simdgroup) + tile_fragment_row(lane);
    const int column = first_column(simdgroup) + tile_fragment_column(lane);
    UNROLL for (int i = 0; i < ROWS / (8 * SPLIT); i++) {
      UNROLL for (int j = 0; j < COLUMNS * SPLIT / 32; j++) {
        UNROLL for (int e = 0; e < 2; e++) {
          c[(row + 8 * i) * stride + column + 8 * j + e] = fragments.element(i, j, e);
        }
      }
    }
  }

  // The first `rows` x `columns` sums, converted to U, to device memory.
  template <typename U>
  METAL_FUNC void store_device(device U* c, int stride, int rows, int columns, uint simdgroup, uint lane) {
    write_device<false>(c, stride, rows, columns, simdgroup, lane);
  }

  // c += the first `rows` x `columns` sums, in device memory.
  METAL_FUNC void add_device(device float* c, int stride, int rows, int columns, uint simdgroup, uint lane) {
    write_device<true>(c, stride, rows, columns, simdgroup, lane);
  }

  // c and its rows begin at whole pairs when the stride is even.
  template <bool ADD, typename U>
  METAL_FUNC void write_device(device U* c, int stride, int rows, int columns, uint simdgroup, uint lane) {
    const int row = first_row(simdgroup) + tile_fragment_row(lane);
    const int column = first_column(simdgroup) + tile_fragment_column(lane);
    UNROLL for (int i = 0; i < ROWS / (8 * SPLIT); i++) {
      UNROLL for (int j = 0; j < COLUMNS * SPLIT / 32; j++) {
        const int left = columns - column - 8 * j;
        if (row + 8 * i >= rows || left <= 0) continue;
        device U* at = c + ulong(row + 8 * i) * ulong(stride) + column + 8 * j;
        float first = fragments.element(i, j, 0);
        float second = fragments.element(i, j, 1);
        if (left > 1 && stride % 2 == 0) {
          device vec<U, 2>* pair = (device vec<U, 2>*)at;
          if (ADD) {
            first += float((*pair).x);
            second += float((*pair).y);
          }
          vec<U, 2> both;
          both.x = U(first);
          both.y = U(second);
          *pair = both;
        } else {
          at[0] = U(ADD ? float(at[0]) + first : first);
          if (left > 1) at[1] = U(ADD ? float(at[1]) + second : second);
        }
      }
    }
  }

  METAL_FUNC int first_row(uint simdgroup) { return int(simdgroup) / (4 / SPLIT) * (ROWS / SPLIT); }
  METAL_FUNC int first_column(uint simdgroup) { return int(simdgroup) % (4 / SPLIT) * (COLUMNS * SPLIT / 4); }
};
