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
