// gemv.metal -- matrices times one vector, for decoding a token: up to four matrices that share the vector a launch.
//
// Segment s: out f32 [rows[s]] = W [rows[s], columns] (codes with scales and biases, or bf16) . x [columns], bf16 or,
// to be normalised on the way in, f32.
#include "lily_gemv.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];
constant int kVectorType [[function_constant(kVectorTypeIndex)]];
constant int kColumnSharing [[function_constant(kColumnSharingIndex)]];
constant int kAccumulate [[function_constant(kAccumulateIndex)]];

// Each simdgroup does kLaneRows rows of the segment that its threadgroup falls into; or, with kSharedColumns, the
// threadgroup does so many, its simdgroups sharing the columns.
[[kernel, max_total_threads_per_threadgroup(kGemvThreads)]] void gemv_segments(
    device const uint* codes_0 [[buffer(0)]],  // segment s: matrix [rows[s], columns]
    device const bfloat* scales_0 [[buffer(1)]],
    device const bfloat* biases_0 [[buffer(2)]],
    device const uint* codes_1 [[buffer(3)]],
    device const bfloat* scales_1 [[buffer(4)]],
    device const bfloat* biases_1 [[buffer(5)]],
    device const uint* codes_2 [[buffer(6)]],
    device const bfloat* scales_2 [[buffer(7)]],
    device const bfloat* biases_2 [[buffer(8)]],
    device const uint* codes_3 [[buffer(9)]],
    device const bfloat* scales_3 [[buffer(10)]],
    device const bfloat* biases_3 [[buffer(11)]],
    device const uint* x [[buffer(12)]],             // [columns]: bf16, or f32 with kResidualVector
    device const float* norm_weight [[buffer(13)]],  // [columns]
    device float* out_0 [[buffer(14)]],              // [rows[0]]
    device float* out_1 [[buffer(15)]],
    device float* out_2 [[buffer(16)]],
    device float* out_3 [[buffer(17)]],
    constant GemvArgs& args [[buffer(18)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const bool shares_columns = kColumnSharing == kSharedColumns;
  const uint block_rows = shares_columns ? uint(kSplitRows) : uint(kGemvRows);
  uint segment = 0;
  uint block = group;  // of block_rows rows, inside the segment
  UNROLL for (uint s = 0; s < 3; s++) {
    const uint blocks = (args.rows[s] + block_rows - 1) / block_rows;
    if (segment == s && s + 1 < args.segments && block >= blocks) {
      block -= blocks;
      segment = s + 1;
    }
  }
  const uint rows = args.rows[segment];
  const uint first_row = block * block_rows + (shares_columns ? 0u : simdgroup * kLaneRows);

  const PackedMatrix matrix =
      packed_matrix(segment == 0 ? codes_0 : segment == 1 ? codes_1 : segment == 2 ? codes_2 : codes_3,
                    segment == 0 ? scales_0 : segment == 1 ? scales_1 : segment == 2 ? scales_2 : scales_3,
                    segment == 0 ? biases_0 : segment == 1 ? biases_1 : segment == 2 ? biases_2 : biases_3, rows,
                    args.columns, uint(kGroupSize));
  threadgroup float4 staged[kStagedColumns / 4];
  threadgroup float partial[kGemvThreads / kSimdWidth];
  threadgroup float4 shares[kGemvThreads / kSimdWidth];
  ThreadPlace place;
  place.simdgroup = simdgroup;
  place.lane = lane;
  float4 sums;
  if (kVectorType == kResidualVector) {
    const InputVector input = input_vector(x, norm_weight, args.eps);
    if (shares_columns) {
      sums = multiply_shared_normalized(kBits, matrix, input, first_row, place, shares, partial);
    } else {
      multiply_normalized<1>(kBits, &matrix, input, first_row, place, staged, partial, &sums);
    }
  } else if (shares_columns) {
    sums = multiply_shared_rows(kBits, matrix, x, first_row, place, shares);
  } else {
    sums = multiply_rows(kBits, matrix, x, first_row, lane);
  }
  if (shares_columns && simdgroup != 0) return;

  device float* out = segment == 0 ? out_0 : segment == 1 ? out_1 : segment == 2 ? out_2 : out_3;
  UNROLL for (int r = 0; r < kLaneRows; r++) {
    const uint row = first_row + uint(r);
    if (lane == uint(r) && row < rows) out[row] = kAccumulate != 0 ? out[row] + sums[r] : sums[r];
  }
}
