// tile_product.metal -- the tile of lily_tile.h alone: c [rows, columns] = a [rows, k] b [columns, k]^T.
#include <metal_stdlib>

#include "lily_tile.h"

struct TileTestArgs {
  uint32_t rows;
  uint32_t columns;
  uint32_t depth;
};

template <typename T, int ROWS, int COLUMNS>
[[kernel, max_total_threads_per_threadgroup(128)]] void tile_product(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device float* c [[buffer(2)]],
    device bfloat* narrow [[buffer(3)]],  // the same, through store_device
    constant TileTestArgs& args [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int DEPTH = 32;
  constexpr int STRIDE = DEPTH + 8;
  threadgroup T left[ROWS * STRIDE];
  threadgroup T right[COLUMNS * STRIDE];
  threadgroup float sums[ROWS * COLUMNS];
  const uint first_row = group.y * ROWS;
  const uint first_column = group.x * COLUMNS;
  Tile<T, ROWS, COLUMNS, DEPTH> tile;
  tile.clear();
  for (uint k = 0; k < args.depth; k += DEPTH) {
    for (uint i = thread_index; i < uint(ROWS * DEPTH); i += 128) {
      const uint row = first_row + i / DEPTH;
      const uint column = k + i % DEPTH;
      const bool inside = row < args.rows && column < args.depth;
      left[(i / DEPTH) * STRIDE + i % DEPTH] = inside ? a[row * args.depth + column] : T(0.0f);
    }
    for (uint i = thread_index; i < uint(COLUMNS * DEPTH); i += 128) {
      const uint row = first_column + i / DEPTH;
      const uint column = k + i % DEPTH;
      const bool inside = row < args.columns && column < args.depth;
      right[(i / DEPTH) * STRIDE + i % DEPTH] = inside ? b[row * args.depth + column] : T(0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    tile.multiply_accumulate(left, STRIDE, right, STRIDE, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  tile.store_threadgroup(sums, COLUMNS, simdgroup, lane);
  tile.store_device(narrow + first_row * args.columns + first_column, int(args.columns), int(args.rows - first_row),
                    int(args.columns - first_column), simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = thread_index; i < uint(ROWS * COLUMNS); i += 128) {
    const uint row = first_row + i / COLUMNS;
    const uint column = first_column + i % COLUMNS;
    if (row < args.rows && column < args.columns) c[row * args.columns + column] = sums[i];
  }
}
template [[host_name("tile_product_bfloat_16")]] [[kernel]] decltype(tile_product<bfloat, 16, 64>) tile_product<bfloat, 16, 64>;
template [[host_name("tile_product_bfloat_32")]] [[kernel]] decltype(tile_product<bfloat, 32, 64>) tile_product<bfloat, 32, 64>;
template [[host_name("tile_product_bfloat_64")]] [[kernel]] decltype(tile_product<bfloat, 64, 64>) tile_product<bfloat, 64, 64>;
template [[host_name("tile_product_float_32")]] [[kernel]] decltype(tile_product<float, 32, 32>) tile_product<float, 32, 32>;

struct WeightedTestArgs {
  uint32_t depth;
};

// A simdgroup's own fragments: weights [ROWS, 32] = a [ROWS, depth] b [32, depth]^T without its negative elements, then
// c [ROWS, 64] = weights, rounded to T, values [32, 64]; maxima and totals [ROWS] are of the weights' rows.
template <typename T, int ROWS>
[[kernel, max_total_threads_per_threadgroup(128)]] void weighted_product(
    device const T* a [[buffer(0)]],
    device const T* b [[buffer(1)]],
    device const T* values [[buffer(2)]],
    device float* c [[buffer(3)]],
    device float* maxima [[buffer(4)]],
    device float* totals [[buffer(5)]],
    constant WeightedTestArgs& args [[buffer(6)]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int DEPTH = 32;
  constexpr int STRIDE = DEPTH + 8;
  constexpr int PIECES = ROWS / 32;
  threadgroup T left[ROWS * STRIDE];
  threadgroup T right[DEPTH * STRIDE];
  threadgroup T rows[DEPTH * 72];
  const int own_row = int(simdgroup) * 8 * PIECES;
  TileFragments<T, PIECES, 4, DEPTH> weights;
  weights.clear();
  for (uint k = 0; k < args.depth; k += DEPTH) {
    for (uint i = thread_index; i < uint(ROWS * DEPTH); i += 128) {
      left[(i / DEPTH) * STRIDE + i % DEPTH] = a[(i / DEPTH) * args.depth + k + i % DEPTH];
    }
    for (uint i = thread_index; i < uint(32 * DEPTH); i += 128) {
      right[(i / DEPTH) * STRIDE + i % DEPTH] = b[(i / DEPTH) * args.depth + k + i % DEPTH];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    weights.multiply_accumulate(left + own_row * STRIDE, STRIDE, right, STRIDE);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = thread_index; i < 32u * 64u; i += 128) rows[i / 64 * 72 + i % 64] = values[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  UNROLL for (int i = 0; i < PIECES; i++) {
    float largest = 0.0f;
    float total = 0.0f;
    UNROLL for (int j = 0; j < 4; j++) {
      UNROLL for (int e = 0; e < 2; e++) {
        const float weight = max(weights.element(i, j, e), 0.0f);
        weights.set_element(i, j, e, weight);
        largest = max(largest, weight);
        total += weight;
      }
    }
    largest = tile_row_maximum(largest);
    total = tile_row_sum(total);
    const int row = own_row + 8 * i + tile_fragment_row(lane);
    if (tile_fragment_column(lane) == 0) {
      maxima[row] = largest;
      totals[row] = total;
    }
  }
  TileFragments<T, PIECES, 8, 32> sums;
  sums.clear();
  sums.add_weighted(weights, rows, 72);
  UNROLL for (int i = 0; i < PIECES; i++) {
    UNROLL for (int j = 0; j < 8; j++) {
      UNROLL for (int e = 0; e < 2; e++) {
        const int row = own_row + 8 * i + tile_fragment_row(lane);
        c[row * 64 + 8 * j + tile_fragment_column(lane) + e] = sums.element(i, j, e);
      }
    }
  }
}
#if !defined(LILY_CUDA)  // tensor cores take 16 rows at a time
template [[host_name("weighted_product_32")]] [[kernel]] decltype(weighted_product<bfloat, 32>) weighted_product<bfloat, 32>;
#endif
template [[host_name("weighted_product_64")]] [[kernel]] decltype(weighted_product<bfloat, 64>) weighted_product<bfloat, 64>;
