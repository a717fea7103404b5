// gemm.metal -- out[m, n] = x[m] . W[n] for many rows, on simdgroup matrices (or the device's own tile, lily_tile.h).
//
// W is dequantized a tile at a time in threadgroup memory and never exists as a whole. Dense, or with rows grouped by
// expert, where each block of rows has the W of its expert.
//
// A threadgroup of four simdgroups makes ROWS x kTileColumns of out; threadgroup memory is (ROWS + 64) * 144 bytes.
#include "lily_gemm.h"
#include "lily_tile.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];
constant int kGrouped [[function_constant(kGroupedIndex)]];
constant int kAccumulate [[function_constant(kAccumulateIndex)]];

template <int ROWS, int BITS>
METAL_FUNC void multiply_steps(thread Tile<bfloat, ROWS, kTileColumns, kTileDepth>& sums, thread RowTile<ROWS>& rows,
                               thread WeightTile<BITS>& weights, uint columns, threadgroup uint4* left,
                               threadgroup uint4* right, uint simdgroup) {
  rows.load(0);
  weights.load(0);
  for (uint k = 0; k < columns; k += kTileDepth) {
    rows.store(left);
    weights.store(right);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + kTileDepth < columns) {
      rows.load(k + kTileDepth);
      weights.load(k + kTileDepth);
    }
    sums.multiply_accumulate((threadgroup const bfloat*)left, kTileStride, (threadgroup const bfloat*)right,
                             kTileStride, simdgroup);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

template <int ROWS>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void gemm_affine(
    device const uint* codes [[buffer(0)]],       // [(experts,) rows_out, columns * kBits / 32]
    device const bfloat* scales [[buffer(1)]],    // [(experts,) rows_out, columns / kGroupSize]
    device const bfloat* biases [[buffer(2)]],
    device const bfloat* x [[buffer(3)]],         // [rows, columns], or the rows that row_of names
    device float* out [[buffer(4)]],              // [rows, out_stride], f32 or bf16
    constant GemmArgs& args [[buffer(5)]],
    device const uint* offsets [[buffer(6)]],     // [experts + 1]
    device const int2* block_map [[buffer(7)]],   // [*block_count] {expert, first row of its group}
    device const uint* block_count [[buffer(8)]],
    device const uint* row_of [[buffer(9)]],      // [rows]
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 left[ROWS * kTileVectors];
  threadgroup uint4 right[int(kTileColumns) * int(kTileVectors)];
  const bool is_grouped = kGrouped != 0;
  const GemmBlock block = is_grouped ? grouped_block(group, ROWS, args.rows_out, offsets, block_map, block_count)
                                     : dense_block(group, ROWS, args.rows, args.rows_out);
  if (block.rows == 0) return;
  RowTile<ROWS> rows;
  rows.begin(x, block, args.columns, kBits == 16 && args.columns % 8 != 0, is_grouped && args.gather_rows != 0, row_of,
             thread_index);
  Tile<bfloat, ROWS, kTileColumns, kTileDepth> sums;
  sums.clear();
  if (kBits == 4) {
    WeightTile<4> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<ROWS, 4>(sums, rows, weights, args.columns, left, right, simdgroup);
  } else if (kBits == 8) {
    WeightTile<8> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<ROWS, 8>(sums, rows, weights, args.columns, left, right, simdgroup);
  } else {
    WeightTile<16> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<ROWS, 16>(sums, rows, weights, args.columns, left, right, simdgroup);
  }
  const ulong first = ulong(block.first_row) * args.out_stride + block.first_column;
  const int stride = int(args.out_stride);
  if (kAccumulate == kStoreDefault) {
    sums.store_device((device bfloat*)out + first, stride, int(block.rows), int(block.columns), simdgroup, lane);
  } else if (kAccumulate == kStoreFloat) {
    sums.store_device(out + first, stride, int(block.rows), int(block.columns), simdgroup, lane);
  } else {
    sums.add_device(out + first, stride, int(block.rows), int(block.columns), simdgroup, lane);
  }
}

template [[host_name("gemm_affine_m16")]] [[kernel]] decltype(gemm_affine<16>) gemm_affine<16>;
template [[host_name("gemm_affine_m32")]] [[kernel]] decltype(gemm_affine<32>) gemm_affine<32>;
template [[host_name("gemm_affine_m64")]] [[kernel]] decltype(gemm_affine<64>) gemm_affine<64>;
