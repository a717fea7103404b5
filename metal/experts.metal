// experts.metal -- the chosen experts' matrices times one token's vector: a mixture-of-experts layer in two launches,
// or, with the fusions off, one launch a matrix.
//
// gate and up [experts, intermediate, hidden_size], down [experts, hidden_size, intermediate], the shared expert's
// without the first dimension; chosen int and weights f32 [experts_per_token]; hidden f32 [hidden_size] in and out;
// activations between them bf16 [experts_per_token, intermediate]. A simdgroup makes kLaneRows rows of a result.
#include "lily_gemv.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];
constant int kVectorType [[function_constant(kVectorTypeIndex)]];

// Lane r holds the result of row first_row + r and stores it.
METAL_FUNC void store_rows(device bfloat* out, float4 sums, uint first_row, uint rows, uint lane) {
  UNROLL for (int r = 0; r < kLaneRows; r++) {
    if (lane == uint(r) && first_row + uint(r) < rows) out[first_row + uint(r)] = bfloat(sums[r]);
  }
}

// y chooses the expert: chosen[y], or the shared one at the end.
[[kernel, max_total_threads_per_threadgroup(kGemvThreads)]] void expert_gate_up(
    device const uint* gate_codes [[buffer(0)]],  // [experts, intermediate, hidden_size]
    device const bfloat* gate_scales [[buffer(1)]],
    device const bfloat* gate_biases [[buffer(2)]],
    device const uint* up_codes [[buffer(3)]],
    device const bfloat* up_scales [[buffer(4)]],
    device const bfloat* up_biases [[buffer(5)]],
    device const uint* shared_gate_codes [[buffer(6)]],  // [shared_intermediate, hidden_size]
    device const bfloat* shared_gate_scales [[buffer(7)]],
    device const bfloat* shared_gate_biases [[buffer(8)]],
    device const uint* shared_up_codes [[buffer(9)]],
    device const bfloat* shared_up_scales [[buffer(10)]],
    device const bfloat* shared_up_biases [[buffer(11)]],
    device const uint* x [[buffer(12)]],             // f32 [hidden_size]
    device const float* norm_weight [[buffer(13)]],  // [hidden_size]
    device const int* chosen [[buffer(14)]],         // [experts_per_token]
    device bfloat* out [[buffer(15)]],               // [experts_per_token, intermediate]
    device bfloat* shared_out [[buffer(16)]],        // [shared_intermediate]
    constant ExpertArgs& args [[buffer(17)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const bool shared = group.y == args.experts_per_token;
  const uint rows = shared ? args.shared_intermediate : args.intermediate;
  if (group.x * kGemvRows >= rows) return;
  const uint first_row = group.x * kGemvRows + simdgroup * kLaneRows;
  const uint expert = shared ? 0u : uint(chosen[group.y]);
  const uint words = expert * args.expert_words;
  const uint scales = expert * args.expert_scales;
  const PackedMatrix matrices[2] = {
      packed_matrix((shared ? shared_gate_codes : gate_codes) + words,
                    (shared ? shared_gate_scales : gate_scales) + scales,
                    (shared ? shared_gate_biases : gate_biases) + scales, rows, args.hidden_size, uint(kGroupSize)),
      packed_matrix((shared ? shared_up_codes : up_codes) + words, (shared ? shared_up_scales : up_scales) + scales,
                    (shared ? shared_up_biases : up_biases) + scales, rows, args.hidden_size, uint(kGroupSize))};
  threadgroup float4 staged[kStagedColumns / 4];
  threadgroup float partial[kGemvThreads / kSimdWidth];
  ThreadPlace place;
  place.simdgroup = simdgroup;
  place.lane = lane;
  float4 sums[2];
  multiply_normalized<2>(kBits, matrices, input_vector(x, norm_weight, args.eps), first_row, place, staged, partial,
                         sums);
  float4 result;
  UNROLL for (int r = 0; r < kLaneRows; r++) result[r] = silu(sums[0][r]) * sums[1][r];
  store_rows(shared ? shared_out : out + group.y * args.intermediate, result, first_row, rows, lane);
}

// A threadgroup does kDownRows rows, each simdgroup for an expert (or for some, in turns).
[[kernel, max_total_threads_per_threadgroup(kDownThreads)]] void expert_down(
    device const uint* codes [[buffer(0)]],  // [experts, hidden_size, intermediate]
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const uint* shared_codes [[buffer(3)]],  // [hidden_size, shared_intermediate]
    device const bfloat* shared_scales [[buffer(4)]],
    device const bfloat* shared_biases [[buffer(5)]],
    device const uint* act [[buffer(6)]],           // bf16 [experts_per_token, intermediate]
    device const uint* shared_act [[buffer(7)]],    // bf16 [shared_intermediate]
    device const int* chosen [[buffer(8)]],         // [experts_per_token]
    device const float* weights [[buffer(9)]],      // [experts_per_token]
    device const float* shared_gate [[buffer(10)]], // [1], before its sigmoid
    device float* hidden [[buffer(11)]],            // [hidden_size], +=
    constant ExpertArgs& args [[buffer(12)]],
    uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 partial[kDownThreads / kSimdWidth];
  const uint first_row = group * kDownRows;
  float4 total = float4(0.0f);
  for (uint first = 0; first <= args.experts_per_token; first += kDownThreads / kSimdWidth) {
    const uint slot = first + simdgroup;
    const bool shared = slot == args.experts_per_token;
    if (slot <= args.experts_per_token) {
      const uint expert = shared ? 0u : uint(chosen[slot]);
      const PackedMatrix matrix = packed_matrix(
          (shared ? shared_codes : codes) + expert * args.expert_words,
          (shared ? shared_scales : scales) + expert * args.expert_scales,
          (shared ? shared_biases : biases) + expert * args.expert_scales, args.hidden_size,
          shared ? args.shared_intermediate : args.intermediate, uint(kGroupSize));
      device const uint* x = shared ? shared_act : act + slot * args.intermediate / 2u;
      const float weight = shared ? sigmoid(shared_gate[0]) : weights[slot];
      const float4 sums = multiply_rows(kBits, matrix, x, first_row, lane) * weight;
      if (lane == 0) partial[simdgroup] = sums;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint together = min(args.experts_per_token + 1u - first, uint(kDownThreads / kSimdWidth));
    for (uint i = 0; i < together; i++) total += partial[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  UNROLL for (int r = 0; r < kLaneRows; r++) {
    const uint row = first_row + uint(r);
    if (simdgroup == 0 && lane == uint(r) && row < args.hidden_size) hidden[row] += total[r];
  }
}

// One matrix of each chosen expert; y chooses the expert.
[[kernel, max_total_threads_per_threadgroup(kGemvThreads)]] void expert_gemv(
    device const uint* codes [[buffer(0)]],  // [experts, rows, columns]
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const uint* x [[buffer(3)]],             // bf16 [experts_per_token, columns]; f32 [columns] with kResidualVector
    device const float* norm_weight [[buffer(4)]],  // [columns]
    device const int* chosen [[buffer(5)]],         // [experts_per_token]
    device bfloat* out [[buffer(6)]],               // [experts_per_token, rows]
    constant ExpertGemvArgs& args [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint first_row = group.x * kGemvRows + simdgroup * kLaneRows;
  if (kVectorType == kBfloatVector && first_row >= args.rows) return;
  const uint expert = uint(chosen[group.y]);
  const PackedMatrix matrix =
      packed_matrix(codes + expert * args.expert_words, scales + expert * args.expert_scales,
                    biases + expert * args.expert_scales, args.rows, args.columns, uint(kGroupSize));
  threadgroup float4 staged[kStagedColumns / 4];
  threadgroup float partial[kGemvThreads / kSimdWidth];
  float4 sums;
  if (kVectorType == kResidualVector) {
    ThreadPlace place;
    place.simdgroup = simdgroup;
    place.lane = lane;
    const InputVector input = input_vector(x, norm_weight, args.eps);
    multiply_normalized<1>(kBits, &matrix, input, first_row, place, staged, partial, &sums);
  } else {
    sums = multiply_rows(kBits, matrix, x + group.y * args.columns / 2u, first_row, lane);
  }
  store_rows(out + group.y * args.rows, sums, first_row, args.rows, lane);
}
