// sim/msl/sim_tile.h -- the fast path of a tile product: the last lane of a simdgroup to arrive multiplies for all.
// The same sums in the same order as 8x8 simdgroup matrices give, so the same bits.
#pragma once

#include "simdgroup_matrix.h"

namespace metal {

// elements[8 FM x 8 FN] += a[8 FM x K] b[8 FN x K]^T for one simdgroup; each lane keeps its fragments' elements.
template <class T, int FM, int FN, int K>
struct DeviceTile {
  float elements[FM][FN][2];

  LILY_FN void clear() {
    for (int i = 0; i < FM; i++) {
      for (int j = 0; j < FN; j++) elements[i][j][0] = elements[i][j][1] = 0.0f;
    }
  }
  LILY_FN void multiply_accumulate(const T* a, int a_stride, const T* b, int b_stride, LILY_SITE) {
    ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
    DeviceTile** lanes = reinterpret_cast<DeviceTile**>(group.exchange[group.parity]);
    lanes[group.lane] = this;
    if (!::lily_sim::arrive(group, ::lily_sim::op_tile, file, line)) return;
    multiply_for_all(lanes, a, a_stride, b, b_stride);
    ::lily_sim::complete(group);
  }
  // elements += weights values, with values [K, 8 FN] row by row.
  template <int OTHER_K>
  LILY_FN void add_weighted(DeviceTile<T, FM, K / 8, OTHER_K>& weights, const T* values, int stride, LILY_SITE) {
    using Weights = DeviceTile<T, FM, K / 8, OTHER_K>;
    struct Lanes {
      DeviceTile* sums[32];
      Weights* weights[32];
    };
    ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
    Lanes& lanes = *reinterpret_cast<Lanes*>(group.exchange[group.parity]);
    lanes.sums[group.lane] = this;
    lanes.weights[group.lane] = &weights;
    if (!::lily_sim::arrive(group, ::lily_sim::op_tile, file, line)) return;
    float left[8 * FM * K], right[K * 8 * FN], products[64 * FM * FN];
    Weights::template exchange<false>(lanes.weights, left);
    for (float& weight : left) weight = float(T(weight));
    for (int k = 0; k < K; k++) {
      for (int j = 0; j < 8 * FN; j++) right[k * 8 * FN + j] = float(values[k * stride + j]);
    }
    exchange<false>(lanes.sums, products);
    ::lily_sim::multiply_tile(left, right, products, 8 * FM, 8 * FN, K);
    exchange<true>(lanes.sums, products);
    ::lily_sim::complete(group);
  }
  LILY_FN float element(int i, int j, int e) { return elements[i][j][e]; }
  LILY_FN void set_element(int i, int j, int e, float value) { elements[i][j][e] = value; }
  LILY_FN void scale(int i, float factor) {
    for (int j = 0; j < FN; j++) {
      elements[i][j][0] *= factor;
      elements[i][j][1] *= factor;
    }
  }

  static __attribute__((noinline)) void multiply_for_all(DeviceTile* const* lanes, const T* a, int a_stride, const T* b,
                                                         int b_stride) {
    constexpr int rows = 8 * FM, columns = 8 * FN;
    float left[rows * K], right[K * columns], sums[rows * columns];
    for (int i = 0; i < rows; i++) {
      for (int k = 0; k < K; k++) left[i * K + k] = float(a[i * a_stride + k]);
    }
    for (int j = 0; j < columns; j++) {
      for (int k = 0; k < K; k++) right[k * columns + j] = float(b[j * b_stride + k]);
    }
    exchange<false>(lanes, sums);
    ::lily_sim::multiply_tile(left, right, sums, rows, columns, K);
    exchange<true>(lanes, sums);
  }
  // Gathers the lanes' accumulators into a row-major matrix, or scatters them back.
  template <bool SCATTER>
  static void exchange(DeviceTile* const* lanes, float* sums) {
    for (int lane = 0; lane < 32; lane++) {
      for (int i = 0; i < FM; i++) {
        for (int j = 0; j < FN; j++) {
          float* at = sums + (8 * i + lily_fragment_row(lane)) * 8 * FN + 8 * j + lily_fragment_column(lane);
          float* element = lanes[lane]->elements[i][j];
          for (int e = 0; e < 2; e++) {
            if (SCATTER) {
              element[e] = at[e];
            } else {
              at[e] = element[e];
            }
          }
        }
      }
    }
  }
};

constexpr ushort kTileRowBit = 1, kTileOtherRowBit = 8;
LILY_FN int tile_fragment_row(uint lane) { return lily_fragment_row(static_cast<int>(lane)); }
LILY_FN int tile_fragment_column(uint lane) { return lily_fragment_column(static_cast<int>(lane)); }

}  // namespace metal
