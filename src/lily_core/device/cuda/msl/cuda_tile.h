// cuda/msl/cuda_tile.h -- the part of one warp in a tile product: elements[8 FM x 8 FN] += a[8 FM x K] b[8 FN x K]^T.
//
// 16-bit factors go through the tensor cores; a and b are then aligned to 16 bytes, and their strides a multiple of 8
// for the fast loads. Everything else is summed in float, a lane the elements it holds.
#pragma once

#include "simd.h"
#include "tensor_core.h"

namespace metal {

// The layout of tensor cores.
LILY_FN int tile_fragment_row(uint lane) { return static_cast<int>(lane >> 2); }
LILY_FN int tile_fragment_column(uint lane) { return static_cast<int>(lane & 3u) * 2; }
constexpr ushort kTileRowBit = 1, kTileOtherRowBit = 2;

template <class T, int FM, int FN, int K, bool ON_TENSOR_CORES = (sizeof(T) == 2 && FM % 2 == 0)>
struct DeviceTile {
  float elements[FM][FN][2];

  LILY_FN void clear() {
#pragma unroll
    for (int i = 0; i < FM; i++) {
#pragma unroll
      for (int j = 0; j < FN; j++) elements[i][j][0] = elements[i][j][1] = 0.0f;
    }
  }
  LILY_FN void multiply_accumulate(const T* a, int a_stride, const T* b, int b_stride) {
    const int row = tile_fragment_row(lily_lane()), column = tile_fragment_column(lily_lane());
#pragma unroll 4
    for (int k = 0; k < K; k++) {
      float left[FM], right[FN][2];
#pragma unroll
      for (int i = 0; i < FM; i++) left[i] = float(a[(8 * i + row) * a_stride + k]);
#pragma unroll
      for (int j = 0; j < FN; j++) {
        for (int e = 0; e < 2; e++) right[j][e] = float(b[(8 * j + column + e) * b_stride + k]);
      }
#pragma unroll
      for (int i = 0; i < FM; i++) {
#pragma unroll
        for (int j = 0; j < FN; j++) {
          for (int e = 0; e < 2; e++) elements[i][j][e] = ::fmaf(left[i], right[j][e], elements[i][j][e]);
        }
      }
    }
  }
  LILY_FN float element(int i, int j, int e) { return elements[i][j][e]; }
  LILY_FN void set_element(int i, int j, int e, float value) { elements[i][j][e] = value; }
  LILY_FN void scale(int i, float factor) {
#pragma unroll
    for (int j = 0; j < FN; j++) {
      for (int e = 0; e < 2; e++) elements[i][j][e] *= factor;
    }
  }
};

template <class T, int FM, int FN, int K>
struct DeviceTile<T, FM, FN, K, true> {
  static_assert(K % 16 == 0, "tensor cores take 16 columns a step");
  float sums[FM / 2][FN][4];  // of rows r and r + 8

  LILY_FN void clear() {
#pragma unroll
    for (int i = 0; i < FM / 2; i++) {
#pragma unroll
      for (int j = 0; j < FN; j++) {
        for (int e = 0; e < 4; e++) sums[i][j][e] = 0.0f;
      }
    }
  }
  LILY_FN void multiply_accumulate(const T* a, int a_stride, const T* b, int b_stride) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      uint left[FM / 2][4], right[(FN + 1) / 2][4];
#pragma unroll
      for (int i = 0; i < FM / 2; i++) load<false>(left[i], a + 16 * i * a_stride + k, a_stride, 2);
#pragma unroll
      for (int j = 0; j < FN; j += 2) load<true>(right[j / 2], b + 8 * j * b_stride + k, b_stride, FN - j);
#pragma unroll
      for (int i = 0; i < FM / 2; i++) {
#pragma unroll
        for (int j = 0; j < FN; j++) TensorCore<T>::multiply_16x8x16(sums[i][j], left[i], right[j / 2] + j % 2 * 2);
      }
    }
  }
  // sums += weights values, with values [K, 8 FN] row by row; their stride is a multiple of 8.
  template <int OTHER_K>
  LILY_FN void add_weighted(DeviceTile<T, FM, K / 8, OTHER_K, true>& weights, const T* values, int stride) {
    static_assert(FN % 2 == 0, "two pieces of columns a load");
    const int lane = static_cast<int>(lily_lane());
    const T* at = values + lane % 16 * stride + lane / 16 * 8;  // transposed: pieces (0,0) (8,0) (0,8) (8,8)
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      uint left[FM / 2][4], right[FN / 2][4];
#pragma unroll
      for (int i = 0; i < FM / 2; i++) {
#pragma unroll
        for (int piece = 0; piece < 4; piece++) {
          const float* pair = weights.sums[i][k / 8 + piece / 2] + piece % 2 * 2;
          left[i][piece] = static_cast<uint>(T(pair[0]).bits) | static_cast<uint>(T(pair[1]).bits) << 16;
        }
      }
#pragma unroll
      for (int j = 0; j < FN; j += 2) lily_load_pieces<true>(right[j / 2], at + k * stride + 8 * j);
#pragma unroll
      for (int i = 0; i < FM / 2; i++) {
#pragma unroll
        for (int j = 0; j < FN; j++) TensorCore<T>::multiply_16x8x16(sums[i][j], left[i], right[j / 2] + j % 2 * 2);
      }
    }
  }
  LILY_FN float element(int i, int j, int e) { return sums[i / 2][j][i % 2 * 2 + e]; }
  LILY_FN void set_element(int i, int j, int e, float value) { sums[i / 2][j][i % 2 * 2 + e] = value; }
  LILY_FN void scale(int i, float factor) {
#pragma unroll
    for (int j = 0; j < FN; j++) {
      for (int e = 0; e < 2; e++) sums[i / 2][j][i % 2 * 2 + e] *= factor;
    }
  }

 private:
  // 16 columns of up to 16 rows, in pieces (0,0) (8,0) (0,8) (8,8); of a second factor (0,0) (0,8) (8,0) (8,8).
  template <bool SECOND>
  LILY_FN static void load(uint* pieces, const T* from, int stride, int row_pieces) {
    const int lane = static_cast<int>(lily_lane());
    if (stride % 8 == 0) {
      const int high = lane >> 4, low = (lane >> 3) & 1;
      const int row_piece = SECOND ? high : low, column_piece = SECOND ? low : high;
      const int row = lane % 8 + (row_piece < row_pieces ? 8 * row_piece : 0);
      lily_load_pieces(pieces, from + row * stride + 8 * column_piece);
      return;
    }
#pragma unroll
    for (int piece = 0; piece < 4; piece++) {
      const int row_piece = SECOND ? piece / 2 : piece % 2, column_piece = SECOND ? piece % 2 : piece / 2;
      const int row = lane / 4 + (row_piece < row_pieces ? 8 * row_piece : 0);
      const T* at = from + row * stride + 8 * column_piece + lane % 4 * 2;
      pieces[piece] = static_cast<uint>(at[0].bits) | static_cast<uint>(at[1].bits) << 16;
    }
  }
};

}  // namespace metal
