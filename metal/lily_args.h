// lily_args.h -- argument structs of the kernels, shared by Metal Shading Language and C++, with each kernel's slots.
//
// 4-byte scalars only, at most 256 bytes a struct. "f32" is float, "bf16" is bfloat. Shapes are row-major.
// A quantized matrix takes three slots: codes (device const uint*), scales and biases (device const bfloat*), with
// function constants kBits (4 or 8) and kGroupSize (32, 64, 128); codes lie on 16-byte, scales on 4-byte boundaries.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#else
#include <cstdint>
#endif

namespace lily {
namespace args {

// Function constant indices, the same in every file.
enum FunctionConstantIndex {
  kBitsIndex = 0,         // 4 or 8 bits a code; 16: the matrix is plain bf16 (scales and biases slots unused)
  kGroupSizeIndex = 1,    // columns a scale
  kHeadDimIndex = 2,      // attention head_dim, a multiple of 32, at most 256
  kKeyDimIndex = 3,       // GDN key head dim, a multiple of 32, at most 256
  kNormInputIndex = 4,    // GEMV: 1: x is the f32 residual and is RMS-normalised on the way in
  kAccumulateIndex = 5,   // GEMV, GEMM: 1: out is the f32 residual, out += result; 0: out = result (GEMV: f32, GEMM: bf16)
  kGroupedIndex = 6,      // GEMM: 1: rows grouped by expert through the block map
  kQueryHeadsIndex = 7,   // attention decode: query heads of a threadgroup that share each KV read (D6); 1: off
  kCoalescedIndex = 8,    // attention decode: 1: lanes read consecutive addresses (D5); 0: a lane reads its own position
};

// embed_rows: ids int [rows] @0, matrix @1 @2 @3, hidden f32 [rows, hidden_size] out @4, args @5.
struct EmbedArgs {
  uint32_t rows;
  uint32_t hidden_size;
};

// rms_norm_rows: x f32 [rows, size] @0, weight f32 [size] @1, out bf16 [rows, size] @2, args @3. A threadgroup a row.
struct NormArgs {
  uint32_t rows;
  uint32_t size;
  float eps;
};

// gemv_segments: up to 4 matrices times the same vector in one dispatch. Segment s: matrix @3s @3s+1 @3s+2, out f32
// [rows[s]] @(14 + s). x @12: bf16 [columns], or with kNormInput f32 [columns], norm weight f32 [columns] @13.
// args @18. Threadgroups: sum over segments of ceil(rows[s] / rows a threadgroup), see gemv.metal. Unused slots repeat slot 0.
struct GemvArgs {
  uint32_t segments;
  uint32_t columns;
  float eps;
  uint32_t rows[4];
};

// expert_gate_up (D4a): for each chosen expert and the shared one: silu(gate x) * (up x), x normalised on the way in.
// routed gate @0-2, routed up @3-5 (all experts, stacked), shared gate @6-8, shared up @9-11, x f32 [hidden_size] @12,
// norm weight f32 @13, chosen int [experts_per_token] @14, out bf16 [experts_per_token, intermediate] @15,
// shared out bf16 [shared_intermediate] @16, args @17.
// expert_down (D4b): hidden += sum_i weight[i] * down_i act_i + sigmoid(shared gate) * shared_down shared_act.
// routed down @0-2, shared down @3-5, act bf16 @6, shared act bf16 @7, chosen int @8, weights f32 [experts_per_token] @9,
// shared gate logit f32 [1] @10, hidden f32 in and out @11, args @12. A row's sum runs in ascending order of expert.
struct ExpertArgs {
  uint32_t hidden_size;
  uint32_t intermediate;
  uint32_t shared_intermediate;
  uint32_t experts_per_token;
  float eps;
};

// route_rows: logits f32 [rows, experts] @0, chosen int [rows, experts_per_token] out @1 (ascending), weights f32 out @2,
// args @3. Softmax, the most probable (ties: lower index), renormalised if normalize. A simdgroup a row.
struct RouteArgs {
  uint32_t rows;
  uint32_t experts;
  uint32_t experts_per_token;
  uint32_t normalize;
};

// P2, prefill routing on the GPU. An assignment is row * experts_per_token + slot.
// route_histogram: chosen @0, counts atomic uint [experts] in and out @1 (zeroed before by fill_zero), args @2.
// route_offsets: counts @0, offsets uint [experts + 1] out @1, block_map int2 [max_blocks] out @2 {expert, first row of
//   the block inside the expert's group}, block_count uint [1] out @3, cursors uint [experts] out @4 (zeros), args @5. One threadgroup.
// route_scatter: chosen @0, offsets @1, cursors in and out @2, row_of uint [assignments] out @3 (row of x of each grouped
//   place), place_of uint [assignments] out @4 (grouped place of each assignment), args @5. Rows keep their order inside an expert.
struct GroupArgs {
  uint32_t rows;
  uint32_t experts;
  uint32_t experts_per_token;
  uint32_t block_rows;  // 16, 32 or 64 (P3)
  uint32_t max_blocks;
};

// gemm_affine: out[m, n] = x[m] . W[n], dequantized tile by tile in threadgroup memory (P1); fp32 accumulate.
// matrix @0-2, x bf16 [rows, columns] @3, out @4, args @5; grouped: offsets @6, block_map @7, block_count @8, row_of @9
// (gathers x rows; kGatherRows of args), expert_stride_* step the matrix by expert. Threadgroups: x: ceil(rows_out / 64),
// y: blocks of block_rows (grouped: max_blocks). Host names gemm_affine_m16, _m32, _m64 (simdgroup_matrix and off-Mac)
// and gemm_affine_tensor_m32, _m64 (Metal 4 matmul2d, own source file).
// dequantize_matrix: the P1 ablation: matrix @0-2, out bf16 [rows, columns] @3, args @4 (GemmArgs); then gemm with kBits 16.
struct GemmArgs {
  uint32_t rows;              // of x (dense), or assignments (grouped)
  uint32_t rows_out;          // N: rows of W
  uint32_t columns;           // K
  uint32_t gather_rows;       // grouped: 1: x row = row_of[place]; 0: x row = place
  uint32_t expert_words;      // grouped: uints of codes between experts
  uint32_t expert_scales;     // grouped: scales between experts
  uint32_t out_stride;        // elements between rows of out
  uint32_t out_column;        // first column of out
};

// silu_multiply_rows: gate bf16 [count] @0, up bf16 [count] @1, out bf16 [count] @2, args @3.
// sigmoid_multiply_rows: x bf16 [rows, heads * head_dim] in and out @0, query f32 [rows, heads, 2, head_dim] @1, args @2.
// fill_zero: out uint [count] @0, args @1.
struct ElementArgs {
  uint32_t count;
  uint32_t heads;
  uint32_t head_dim;
};

// combine_experts: y bf16 [assignments, hidden_size] @0 (grouped places), place_of @1, weights f32 @2, shared y bf16
// [rows, hidden_size] @3, shared gate logit f32 [rows] @4, hidden f32 [rows, hidden_size] in and out @5, args @6.
struct CombineArgs {
  uint32_t rows;
  uint32_t hidden_size;
  uint32_t experts_per_token;
};

// gdn_conv: qkv f32 [tokens, conv_dim] @0 (decode) or bf16 (gdn_conv_bf16, prefill), a f32 [tokens, value_heads] @1, b @2,
//   taps f32 [conv_dim, kernel] @3, decay_rate f32 [value_heads] @4, dt_bias f32 [value_heads] @5,
//   conv_state f32 [kernel - 1, conv_dim] in @6, conv_state out @7 (another buffer: the two swap roles at every step),
//   query bf16 [tokens, key_heads, key_dim] out @8, key bf16 out @9, value bf16 [tokens, value_heads, value_dim] out @10,
//   decay f32 [tokens, value_heads] out @11, beta f32 out @12, args @13. silu; q, k l2-normalised, q scaled; gates.
// gdn_scan (P4) and gdn_scan_blocked (its ablation): query @0, key @1, value @2, decay @3, beta @4, state f32
//   [value_heads, value_dim, key_dim] in and out @5, out f32 [tokens, value_heads, value_dim] @6, args @7.
// gdn_norm: x f32 [tokens, value_heads, value_dim] @0, z bf16 (prefill) or f32 (gdn_norm_f32z, decode) @1, weight f32
//   [value_dim] @2, out bf16 @3, args @4.
// gdn_step (D4d, decode): query, key, value, decay, beta @0-4, state @5, z f32 @6, weight f32 @7, out bf16 [value_heads *
//   value_dim] @8, args @9: scan step and gated norm in one. A threadgroup a value head.
struct GdnArgs {
  uint32_t tokens;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t kernel_size;
  float eps;
};

// attention_prepare (D4c): per row: q/k RMS norm, RoPE, cache write; q scaled by 1/sqrt(head_dim).
//   projected query f32 (decode) [rows, heads, 2, head_dim] @0 or bf16 (attention_prepare_bf16, prefill), key @1, value @2,
//   q_norm f32 @3, k_norm f32 @4, frequencies f32 [rotary_dim / 2] @5, position int [1] @6 (of row 0), query out bf16
//   [rows, heads, head_dim] @7, cache keys bf16 [kv_heads, capacity, head_dim] out @8, cache values out @9, args @10.
//   Ablation: attention_norm_rope (same slots without cache) and attention_cache_write.
// attention_prefill: query bf16 @0, keys @1, values @2, gate (projected query of prepare) @3, position int [1] @4, out bf16
//   [rows, heads * head_dim] @5, args @6. Flash attention, causal, output gate applied.
// attention_decode (general) and attention_decode_blocked (D7: fixed blocks): query bf16 [heads, head_dim] @0, keys @1,
//   values @2, position int [1] @3, partial f32 [splits, heads, head_dim + 2] out @4 {sum, max, values}, args @5.
// attention_reduce: partial @0, gate f32 [heads, 2, head_dim] @1, out bf16 [heads * head_dim] @2, position @3, args @4.
struct AttentionArgs {
  uint32_t rows;
  uint32_t heads;
  uint32_t kv_heads;
  uint32_t head_dim;
  uint32_t rotary_dim;
  uint32_t capacity;  // positions the cache has room for
  uint32_t splits;    // decode: parts of the context, each a threadgroup
  float eps;
};

// argmax_partial: logits f32 [candidates] @0, best f32 [parts] out @1, index int [parts] out @2, args @3.
// argmax_final (D2): best @0, index @1, token int [1] out @2 (the next step's slot), args @3. Ties: lower id.
// sample_token: logits f32 @0, token int [1] out @1, position int [1] @2, args @3: temperature, top-k, top-p, min-p with
//   the counter-based draw of engine/sampler.h: the same token as the CPU sampler for the same logits.
// advance_position: position int [1] in and out @0.
struct SampleArgs {
  uint32_t candidates;  // ids below this may be chosen: padding rows of the vocabulary are above
  uint32_t parts;
  float temperature;
  uint32_t top_k;
  float top_p;
  float min_p;
  uint32_t seed_low;
  uint32_t seed_high;
};

}  // namespace args
}  // namespace lily
