// experts.metal -- the chosen experts' matrices times one token's vector: a mixture-of-experts layer in two launches, or,
// with the fusions off, one launch a matrix.
#include "lily_gemv.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];
constant int kNormInput [[function_constant(kNormInputIndex)]];

// Lane r holds the result of row first_row + r and stores it.
METAL_FUNC void store_rows(device bfloat* out, float4 sums, uint first_row, uint rows, uint lane) {
  UNROLL for (int r = 0; r < kLaneRows; r++) {
    if (lane == uint(r) && first_row + uint(r) < rows) out[first_row + uint(r)] = bfloat(sums[r]);
  }
}

// silu(gate x) * (up x) of a simdgroup's rows, with each part of x read once for both matrices.
template <int BITS, int WORDS>
METAL_FUNC float4 gate_up_rows(PackedMatrix gate, PackedMatrix up, InputVector x, uint first_row, uint lane) {
  const uint columns = WORDS * 32 / BITS;
  float4 gate_sums = float4(0.0f);
  float4 up_sums = float4(0.0f);
  float squares = 0.0f;
  for (uint column = lane * columns; column < gate.columns; column += kSimdWidth * columns) {
    LaneRows<BITS, WORDS> gate_part;
    LaneRows<BITS, WORDS> up_part;
    LaneVector<BITS, WORDS> part;
    gate_part.load(gate, first_row, column);
    up_part.load(up, first_row, column);
    part.load_residual(x.values, x.norm_weight, column, squares);
    gate_sums += gate_part.products(part);
    up_sums += up_part.products(part);
  }
  const float factor = norm_factor(squares, gate.columns, x.eps);
  gate_sums = simd_sum(gate_sums) * factor;
  up_sums = simd_sum(up_sums) * factor;
  float4 result;
  UNROLL for (int r = 0; r < kLaneRows; r++) result[r] = silu(gate_sums[r]) * up_sums[r];
  return result;
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
  const uint first_row = group.x * kGemvRows + simdgroup * kLaneRows;
  if (first_row >= rows) return;

  const uint expert = shared ? 0u : uint(chosen[group.y]);
  const uint words = expert * args.expert_words;
  const uint scales = expert * args.expert_scales;
  const PackedMatrix gate =
      packed_matrix((shared ? shared_gate_codes : gate_codes) + words, (shared ? shared_gate_scales : gate_scales) + scales,
                    (shared ? shared_gate_biases : gate_biases) + scales, rows, args.hidden_size, uint(kGroupSize));
  const PackedMatrix up =
      packed_matrix((shared ? shared_up_codes : up_codes) + words, (shared ? shared_up_scales : up_scales) + scales,
                    (shared ? shared_up_biases : up_biases) + scales, rows, args.hidden_size, uint(kGroupSize));
  const InputVector input = input_vector(x, norm_weight, args.eps);
  float4 result;
  if (kBits == 4) {
    result = gate_up_rows<4, 2>(gate, up, input, first_row, lane);
  } else if (kBits == 8) {
    result = gate_up_rows<8, 4>(gate, up, input, first_row, lane);
  } else if (args.hidden_size % 8u == 0u) {
    result = gate_up_rows<16, 4>(gate, up, input, first_row, lane);
  } else {
    result = gate_up_rows<16, 1>(gate, up, input, first_row, lane);
  }
  store_rows(shared ? shared_out : out + group.y * args.intermediate, result, first_row, rows, lane);
}

// A lane's shares of rows of the matrix times x, times the weight, added to its sums.
template <int BITS, int WORDS>
METAL_FUNC float4 add_weighted_rows(PackedMatrix matrix, device const uint* x, float weight, uint first_row, uint lane,
                                    float4 sums) {
  const uint columns = WORDS * 32 / BITS;
  for (uint column = lane * columns; column < matrix.columns; column += kSimdWidth * columns) {
    LaneRows<BITS, WORDS> rows;
    LaneVector<BITS, WORDS> part;
    rows.load(matrix, first_row, column);
    part.load_bfloat(x, column);
    sums = fma(float4(weight), rows.products(part), sums);
  }
  return sums;
}

// For bits that a function constant gives. An expert has few columns: they are spread over all lanes.
METAL_FUNC float4 add_weighted_rows(int bits, PackedMatrix matrix, device const uint* x, float weight, uint first_row,
                                    uint lane, float4 sums) {
  if (bits == 4) return add_weighted_rows<4, 2>(matrix, x, weight, first_row, lane, sums);
  if (bits == 8) return add_weighted_rows<8, 4>(matrix, x, weight, first_row, lane, sums);
  return matrix.columns % 8u == 0u ? add_weighted_rows<16, 4>(matrix, x, weight, first_row, lane, sums)
                                   : add_weighted_rows<16, 1>(matrix, x, weight, first_row, lane, sums);
}

// A simdgroup does its rows for all experts, so that their sum never leaves its registers.
[[kernel, max_total_threads_per_threadgroup(kGemvThreads)]] void expert_down(
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
  const uint first_row = group * kGemvRows + simdgroup * kLaneRows;
  if (first_row >= args.hidden_size) return;
  float4 sums = float4(0.0f);
  for (uint i = 0; i < args.experts_per_token; i++) {
    const uint expert = uint(chosen[i]);
    const PackedMatrix matrix =
        packed_matrix(codes + expert * args.expert_words, scales + expert * args.expert_scales,
                      biases + expert * args.expert_scales, args.hidden_size, args.intermediate, uint(kGroupSize));
    sums = add_weighted_rows(kBits, matrix, act + i * args.intermediate / 2u, weights[i], first_row, lane, sums);
  }
  const PackedMatrix shared = packed_matrix(shared_codes, shared_scales, shared_biases, args.hidden_size,
                                            args.shared_intermediate, uint(kGroupSize));
  sums = add_weighted_rows(kBits, shared, shared_act, sigmoid(shared_gate[0]), first_row, lane, sums);
  sums = simd_sum(sums);
  UNROLL for (int r = 0; r < kLaneRows; r++) {
    const uint row = first_row + uint(r);
    if (lane == uint(r) && row < args.hidden_size) hidden[row] += sums[r];
  }
}

// One matrix of each chosen expert; y chooses the expert.
[[kernel, max_total_threads_per_threadgroup(kGemvThreads)]] void expert_gemv(
    device const uint* codes [[buffer(0)]],  // [experts, rows, columns]
    device const bfloat* scales [[buffer(1)]],
    device const bfloat* biases [[buffer(2)]],
    device const uint* x [[buffer(3)]],             // bf16 [experts_per_token, columns]; f32 [columns] with kNormInput
    device const float* norm_weight [[buffer(4)]],  // [columns]
    device const int* chosen [[buffer(5)]],         // [experts_per_token]
    device bfloat* out [[buffer(6)]],               // [experts_per_token, rows]
    constant ExpertGemvArgs& args [[buffer(7)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint first_row = group.x * kGemvRows + simdgroup * kLaneRows;
  if (first_row >= args.rows) return;
  const uint expert = uint(chosen[group.y]);
  const PackedMatrix matrix =
      packed_matrix(codes + expert * args.expert_words, scales + expert * args.expert_scales,
                    biases + expert * args.expert_scales, args.rows, args.columns, uint(kGroupSize));
  float4 sums;
  if (kNormInput != 0) {
    sums = multiply_rows<true>(kBits, matrix, input_vector(x, norm_weight, args.eps), first_row, lane);
  } else {
    sums = multiply_rows<false>(kBits, matrix, input_vector(x + group.y * args.columns / 2u, norm_weight, args.eps),
                                first_row, lane);
  }
  store_rows(out + group.y * args.rows, sums, first_row, args.rows, lane);
}
