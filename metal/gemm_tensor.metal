// gemm_tensor.metal -- the products of gemm.metal on Metal 4 tensor operations: the same slots, constants and results.
//
// For GPUs with matrix units of their own (Apple M5) and macOS 26.2 on: a library of its own, compiled for Metal 4.0.
// No other device has these kernels; where the compiler knows no tensors the file is empty. A matmul2d of all four
// simdgroups multiplies the tiles in threadgroup memory, with its sums in a cooperative float tensor.
#include <metal_stdlib>

#if defined(__HAVE_TENSOR__)
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_tensor>

#include "lily_gemm.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];
constant int kGrouped [[function_constant(kGroupedIndex)]];
constant int kAccumulate [[function_constant(kAccumulateIndex)]];

// A tile in threadgroup memory. Extents and coordinates of tensors are inner first: {column along k, row}.
using TensorTile = tensor<threadgroup bfloat, dextents<int32_t, 2>, tensor_inline>;

template <int BITS, typename PRODUCT, typename SUMS, typename ROW_TILE>
METAL_FUNC void multiply_steps(thread PRODUCT& product, thread SUMS& sums, thread ROW_TILE& rows,
                               thread WeightTile<BITS>& weights, uint columns, threadgroup uint4* left,
                               threadgroup uint4* right, thread TensorTile& left_tile, thread TensorTile& right_tile) {
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
    product.run(left_tile, right_tile, sums);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

// Which elements a thread holds is the implementation's choice: each element says its {column, row}.
template <typename SUMS>
METAL_FUNC void store_sums(thread SUMS& sums, device float* out, GemmBlock block, uint stride) {
  const ulong first = ulong(block.first_row) * stride + block.first_column;
  UNROLL for (ushort i = 0; i < sums.get_capacity(); i++) {
    if (!sums.is_valid_element(i)) continue;
    const auto position = sums.get_multidimensional_index(i);
    const uint column = uint(position[0]);
    const uint row = uint(position[1]);
    if (row >= block.rows || column >= block.columns) continue;
    const ulong at = first + ulong(row) * stride + column;
    if (kAccumulate == kStoreDefault) {
      ((device bfloat*)out)[at] = bfloat(sums[i]);
    } else if (kAccumulate == kStoreFloat) {
      out[at] = sums[i];
    } else {
      out[at] += sums[i];
    }
  }
}

template <int ROWS>
[[kernel, max_total_threads_per_threadgroup(kTileThreads)]] void gemm_affine_tensor(
    device const uint* codes [[buffer(0)]],     // [(experts,) rows_out, columns * kBits / 32]
    device const bfloat* scales [[buffer(1)]],  // [(experts,) rows_out, columns / kGroupSize]
    device const bfloat* biases [[buffer(2)]],
    device const bfloat* x [[buffer(3)]],  // [rows, columns], or the rows that row_of names
    device float* out [[buffer(4)]],       // [rows, out_stride], f32 or bf16
    constant GemmArgs& args [[buffer(5)]],
    device const uint* offsets [[buffer(6)]],    // [experts + 1]
    device const int2* block_map [[buffer(7)]],  // [*block_count] {expert, first row of its group}
    device const uint* block_count [[buffer(8)]],
    device const uint* row_of [[buffer(9)]],  // [rows]
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  threadgroup uint4 left[ROWS * kTileVectors];
  threadgroup uint4 right[kTileColumns * kTileVectors];
  const bool is_grouped = kGrouped != 0;
  const GemmBlock block = is_grouped ? grouped_block(group, ROWS, args.rows_out, offsets, block_map, block_count)
                                     : dense_block(group, ROWS, args.rows, args.rows_out);
  if (block.rows == 0) return;  // as a whole threadgroup: every thread of the product's scope reaches its runs
  RowTile<ROWS> rows;
  rows.begin(x, block, args.columns, kBits == 16 && args.columns % 8 != 0, is_grouped && args.gather_rows != 0, row_of,
             thread_index);
  const array<int32_t, 2> strides = {1, kTileStride};
  TensorTile left_tile((threadgroup bfloat*)left, dextents<int32_t, 2>(kTileDepth, ROWS), strides);
  TensorTile right_tile((threadgroup bfloat*)right, dextents<int32_t, 2>(kTileDepth, kTileColumns), strides);
  // sums [ROWS, kTileColumns] += left right^T by all simdgroups together; the last `false`: no reduced precision.
  constexpr auto descriptor =
      mpp::tensor_ops::matmul2d_descriptor(ROWS, kTileColumns, kTileDepth, false, true, false,
                                           mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<kTileThreads / kSimdWidth>> product;
  auto sums = product.template get_destination_cooperative_tensor<TensorTile, TensorTile, float>();
  UNROLL for (ushort i = 0; i < sums.get_capacity(); i++) {
    if (sums.is_valid_element(i)) sums[i] = 0.0f;
  }
  if (kBits == 4) {
    WeightTile<4> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<4>(product, sums, rows, weights, args.columns, left, right, left_tile, right_tile);
  } else if (kBits == 8) {
    WeightTile<8> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<8>(product, sums, rows, weights, args.columns, left, right, left_tile, right_tile);
  } else {
    WeightTile<16> weights;
    weights.begin(codes, scales, biases, block, args, uint(kGroupSize), thread_index);
    multiply_steps<16>(product, sums, rows, weights, args.columns, left, right, left_tile, right_tile);
  }
  store_sums(sums, out, block, args.out_stride);
}

template [[host_name("gemm_affine_tensor_m32")]] [[kernel]] decltype(gemm_affine_tensor<32>) gemm_affine_tensor<32>;
template [[host_name("gemm_affine_tensor_m64")]] [[kernel]] decltype(gemm_affine_tensor<64>) gemm_affine_tensor<64>;
#endif
