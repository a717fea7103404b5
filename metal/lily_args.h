// lily_args.h -- the argument structs of the kernels, shared by Metal and C++, with every kernel's slots and launch.
//
// This is the contract between the kernels and the passes of src/lily_core/gpu/. 4-byte scalars only, at most 256 bytes a
// struct. "f32" is float, "bf16" is bfloat, shapes are row-major, sizes count elements unless a name says bytes. "@n" is
// [[buffer(n)]]; a slot is written only if the text says "out" (any other is `device const`). "Launch: {x, y} t" is the
// grid of threadgroups and the threads in each; threadgroup memory is declared inside the kernels. Sizes need not be
// multiples of a tile: the last threadgroup of a row leaves what is past the end.
//
// A matrix takes three slots: codes (device const uint*, 16-byte aligned), scales and biases (device const bfloat*, 4-byte
// aligned), with function constants kBits and kGroupSize. Plain bf16 matrices (kBits 16) have their values in the codes
// slot; the other two then repeat that binding, as every slot does that a launch does not use.
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
using namespace metal;
#else
#include <cstdint>
#endif

namespace lily {
namespace args {

// Function constant indices, the same in every file. A kernel sets those that it names.
enum FunctionConstantIndex {
  kBitsIndex = 0,         // 4 or 8 bits a code; 16: plain bf16
  kGroupSizeIndex = 1,    // columns a scale: 32, 64 or 128; 64 when plain
  kHeadDimIndex = 2,      // attention head_dim, a multiple of 32, at most 256
  kKeyDimIndex = 3,       // GDN key head dim, a multiple of 32, at most 256
  kVectorTypeIndex = 4,   // GEMV: a VectorType
  kAccumulateIndex = 5,   // GEMV, GEMM: a value of OutputMode
  kGroupedIndex = 6,      // GEMM: 1: rows grouped by expert through the block map
  kQueryHeadsIndex = 7,   // attention decode: query heads of a threadgroup that share each KV read: 4 (D6), 2 or 1 (off)
  kCoalescedIndex = 8,    // attention decode: 1: lanes read consecutive addresses (D5); 0: a lane reads its own position
  kColumnSharingIndex = 9,  // gemv_segments: a ColumnSharing
};

enum OutputMode {
  kStoreDefault = 0,     // out = result, in the family's own type: GEMV f32, GEMM bf16
  kAccumulateFloat = 1,  // out is the f32 residual: out += result
  kStoreFloat = 2,       // out = result in f32
};

// What a GEMV kernel multiplies with.
enum VectorType {
  kBfloatVector = 0,    // bf16
  kResidualVector = 1,  // the f32 residual, RMS-normalised on the way in
};

// How the simdgroups of a gemv_segments threadgroup share the work. In expert_gemv each has whole rows of its own.
enum ColumnSharing {
  kWholeRows = 0,      // a simdgroup has rows of its own, all their columns; kGemvRows rows a threadgroup
  kSharedColumns = 1,  // all simdgroups have the same rows, and a part of the columns each; kSplitRows a threadgroup
};

// Launch sizes. Changing one here changes kernel and pass together.
enum LaunchSize {
  kSimdWidth = 32,
  kRowThreads = 128,        // of a threadgroup that works on one row
  kElementThreads = 256,    // elements a threadgroup of elementwise kernels: one a thread
  kGemvThreads = 128,       // four simdgroups,
  kGemvRows = 16,           // four matrix rows each;
  kSplitRows = 4,           // with kSharedColumns: four rows a threadgroup
  kDownRows = 4,            // expert_down: matrix rows a threadgroup,
  kDownThreads = 288,       // a simdgroup for each of nine experts; more experts share them
  kTileThreads = 128,       // GEMM: four simdgroups
  kTileColumns = 64,        // GEMM: columns of out a threadgroup; its rows are in the kernel's name
  kGroupThreads = 128,      // routing kernels
  kScanThreads = 128,       // gdn_scan: four simdgroups,
  kScanColumns = 4,         // a state column (of value_dim) each
  kScanBlock = 16,          // gdn_scan_blocked: tokens between two states in memory
  kStepThreads = 512,       // gdn_step
  kStepMaxValueDim = 1024,
  kAttentionThreads = 128,
  kAttentionRows = 32,      // attention_prefill: query rows a threadgroup,
  kWideAttentionRows = 64,  // and with LILY_WIDE_ATTENTION, in 42 KB of threadgroup memory, which Apple GPUs don't have
  kAttentionBlock = 512,    // attention_decode_blocked: positions a split, always
  kArgmaxThreads = 256,
  kArgmaxParts = 128,
  kSampleThreads = 512,
};

// embed_rows: ids int [rows] @0, matrix @1 @2 @3, hidden f32 [rows, hidden_size] out @4, args @5. An id outside
// [0, vocab_size) gives a row of zeros (a step may run ahead of a failed choice). Launch: {rows} kRowThreads.
struct EmbedArgs {
  uint32_t rows;
  uint32_t hidden_size;
  uint32_t vocab_size;
};

// rms_norm_rows: x f32 [rows, size] @0, weight f32 [size] @1, out bf16 [rows, size] @2, args @3.
// Launch: {rows} kRowThreads.
struct NormArgs {
  uint32_t rows;
  uint32_t size;
  float eps;
};

// gemv_segments: up to 4 matrices of one format times the same vector. Segment s: matrix @3s @3s+1 @3s+2, out f32 [rows[s]]
// @(14 + s). x @12 [columns]: bf16, or f32 (kResidualVector) with norm weight f32 [columns] @13. args @18. Constants:
// kBits, kGroupSize, kVectorType, kColumnSharing, kAccumulate (0 or 1, all segments alike).
// Launch: {sum over segments of ceil(rows[s] / kGemvRows), or kSplitRows with kSharedColumns} kGemvThreads; a threadgroup
// works on one segment.
struct GemvArgs {
  uint32_t segments;
  uint32_t columns;
  float eps;
  uint32_t rows[4];
};

// expert_gate_up (D4a): for each chosen expert and the shared one: silu(gate x) * (up x), x normalised on the way in.
// routed gate @0-2, routed up @3-5 (all experts, see expert_words), shared gate @6-8, shared up @9-11, x f32 [hidden_size]
// @12, norm weight f32 @13, chosen int [experts_per_token] @14, out bf16 [experts_per_token, intermediate] out @15,
// shared out bf16 [shared_intermediate] out @16, args @17. Constants: kBits, kGroupSize.
// Launch: {ceil(max(intermediate, shared_intermediate) / kGemvRows), experts_per_token + 1} kGemvThreads; the last y is shared.
// expert_down (D4b): hidden += sum_i weight[i] * down_i act_i + sigmoid(shared gate) * shared_down shared_act.
// routed down @0-2, shared down @3-5, act bf16 @6, shared act bf16 @7, chosen int @8, weights f32 [experts_per_token] @9,
// shared gate logit f32 [1] @10, hidden f32 out @11 (+=), args @12. Sums run in the order of `chosen`, shared last.
// Constants: kBits, kGroupSize. Launch: {ceil(hidden_size / kDownRows)} kDownThreads.
// expert_gemv (D4a, D4b off): out[i] = W[chosen[i]] x[i]: matrix @0-2 (all experts), x @3: bf16 [experts_per_token, columns], or
// with kResidualVector one f32 [columns] for all, norm weight f32 [columns] @4, chosen int [experts_per_token] @5,
// out bf16 [experts_per_token, rows] out @6, args @7 (ExpertGemvArgs). Constants: kBits, kGroupSize, kVectorType.
// Launch: {ceil(rows / kGemvRows), experts_per_token} kGemvThreads.
struct ExpertArgs {
  uint32_t hidden_size;
  uint32_t intermediate;
  uint32_t shared_intermediate;
  uint32_t experts_per_token;
  float eps;
  uint32_t expert_words;   // uints of codes from one expert's matrix to the next
  uint32_t expert_scales;  // scales from one expert's to the next
};

struct ExpertGemvArgs {
  uint32_t rows;
  uint32_t columns;
  uint32_t experts_per_token;
  float eps;
  uint32_t expert_words;
  uint32_t expert_scales;
};

// route_rows: logits f32 [rows, experts] @0, chosen int [rows, experts_per_token] out @1 (ascending), weights f32 out @2,
// args @3. Softmax, the most probable (ties: lower index), renormalised if normalize. Launch: {rows} kSimdWidth.
struct RouteArgs {
  uint32_t rows;
  uint32_t experts;
  uint32_t experts_per_token;
  uint32_t normalize;
};

// P2, prefill routing on the GPU. An assignment is row * experts_per_token + slot; its place is where it lies once grouped
// by expert. No atomics: the order of places is always the same.
// route_histogram: chosen @0, counts uint [experts] out @1, args @2. Launch: {experts} kGroupThreads.
// route_offsets: counts @0, offsets uint [experts + 1] out @1, block_map int2 [max_blocks] out @2 {expert, first row of the
//   block inside the expert's group}, block_count uint [1] out @3, args @4. Launch: {1} kGroupThreads.
// route_scatter: chosen @0, offsets @1, row_of uint [assignments] out @2 (row of x of each place), place_of uint
//   [assignments] out @3, args @4. Rows keep their order inside an expert. Launch: {experts} kGroupThreads.
struct GroupArgs {
  uint32_t rows;
  uint32_t experts;
  uint32_t experts_per_token;
  uint32_t block_rows;  // 16, 32 or 64 (P3)
  uint32_t max_blocks;  // assignments / block_rows + experts, rounded down
};

// gemm_affine_m16, _m32, _m64 (and gemm_affine_tensor_m32, _m64 in a source file of their own): out[m, n] = x[m] . W[n],
// dequantized tile by tile in threadgroup memory (P1); fp32 accumulate.
// matrix @0-2, x bf16 [rows, columns] @3, out @4 (bf16 or f32 by kAccumulate), args @5; with kGrouped: offsets @6,
// block_map @7, block_count @8, row_of @9. Row p of out (a place, when grouped) is x[p], or x[row_of[p]] with gather_rows.
// Constants: kBits, kGroupSize, kGrouped, kAccumulate. Launch: {ceil(rows_out / kTileColumns), ceil(rows / m); grouped:
// max_blocks} kTileThreads; a threadgroup at or past *block_count leaves at once.
// dequantize_matrix (P1 off): matrix @0-2, out bf16 [rows_out, columns] out @3, args @4; gemm with kBits 16 follows.
// Constants: kBits, kGroupSize. Launch: {rows_out, ceil(columns / kElementThreads)} kElementThreads (x: all experts' rows).
struct GemmArgs {
  uint32_t rows;           // M: of x (dense), or assignments (grouped)
  uint32_t rows_out;       // N: rows of W
  uint32_t columns;        // K
  uint32_t gather_rows;
  uint32_t expert_words;   // grouped: uints of codes (kBits 16: of bf16 pairs) between experts
  uint32_t expert_scales;  // grouped: scales between experts
  uint32_t out_stride;     // elements between rows of out
};

// silu_multiply_rows: gate bf16 [count] @0, up bf16 [count] @1, out bf16 [count] out @2, args @3: silu(gate) * up.
// fill_zero: uint [count] out @0, args @1. copy_words: from uint [count] @0, to uint [count] out @1, args @2.
// Launch of all three: {ceil(count / (4 * kElementThreads))} kElementThreads; a thread does 4 neighbours.
// All pointers are aligned to those 4: bf16 to 8 bytes, words to 16.
struct ElementArgs {
  uint32_t count;
};

// combine_experts: hidden[row] += sum_i weight[i] * y[place_of[i]] + sigmoid(shared gate) * shared y[row].
// y bf16 [assignments, hidden_size] @0, place_of @1, weights f32 @2, shared y bf16 [rows, hidden_size] @3, shared gate logit
// f32 [rows] @4, hidden f32 [rows, hidden_size] out @5 (+=), args @6. Launch: {ceil(hidden_size / kElementThreads), rows}
// kElementThreads.
struct CombineArgs {
  uint32_t rows;
  uint32_t hidden_size;
  uint32_t experts_per_token;
};

// gdn_conv (qkv f32, decode) and gdn_conv_bf16 (qkv bf16, prefill): qkv [tokens, conv_dim] @0, a f32 [tokens, value_heads]
//   @1, b f32 @2, taps f32 [conv_dim, kernel_size] @3 (oldest first), decay_rate f32 [value_heads] @4, dt_bias f32
//   [value_heads] @5, conv_state f32 [kernel_size - 1, conv_dim] @6 (oldest first), next conv_state out @7 (another buffer),
//   query bf16 [tokens, key_heads, key_dim] out @8, key bf16 out @9, value bf16 [tokens, value_heads, value_dim] out @10,
//   decay f32 [tokens, value_heads] out @11, beta f32 out @12, args @13. conv_dim is [q | k | v]. silu; q, k l2-normalised
//   (1e-6 added to the sum of squares), q also times key_dim^-0.5; decay = exp(-decay_rate softplus(a + dt_bias)), beta =
//   sigmoid(b). Launch: {2 key_heads + value_heads, tokens} kRowThreads: x is a head of q, then k, then v (which also does
//   that head's decay and beta); the last token's threadgroup writes the next conv_state of its channels.
// gdn_scan (P4) and gdn_scan_blocked (off): query @0, key @1, value @2, decay @3, beta @4, state f32 [value_heads, value_dim,
//   key_dim] @5, next state out @6 (another buffer), out f32 [tokens, value_heads, value_dim] out @7, args @8; blocked also
//   block states f32 [ceil(tokens / kScanBlock), value_heads, value_dim, key_dim] out @9 (scratch). Constant kKeyDim. Launch:
//   {ceil(value_dim / kScanColumns), value_heads} kScanThreads. Value head h reads key head h * key_heads / value_heads.
// gdn_norm (z bf16, prefill) and gdn_norm_f32z (decode): x f32 [tokens, value_heads, value_dim] @0, z @1, weight f32
//   [value_dim] @2, out bf16 [tokens, value_heads, value_dim] out @3, args @4: rms_norm(x) * weight * silu(z).
//   Launch: {value_heads, tokens} kSimdWidth.
// gdn_step (D4d, decode): query, key, value, decay, beta @0-4, state @5, next state out @6, z f32 @7, weight f32 @8,
//   out bf16 [value_heads, value_dim] out @9, args @10: a scan of one token and gdn_norm in one. Constant kKeyDim.
//   value_dim is at most kStepMaxValueDim. Launch: {value_heads} kStepThreads.
struct GdnArgs {
  uint32_t tokens;
  uint32_t key_heads;
  uint32_t value_heads;
  uint32_t key_dim;
  uint32_t value_dim;
  uint32_t kernel_size;
  float eps;
};

// attention_prepare (D4c; inputs f32, decode) and attention_prepare_bf16 (prefill): q/k RMS norm, RoPE on the first rotary_dim
//   (pairs i, i + rotary_dim / 2), cache write; q scaled by 1/sqrt(head_dim). projected query [rows, heads, 2, head_dim] @0
//   {query, gate}, key [rows, kv_heads, head_dim] @1, value @2, q_norm f32 @3, k_norm f32 @4, frequencies f32
//   [rotary_dim / 2] @5, position int [1] @6 (of row 0), query bf16 [rows, heads, head_dim] out @7, cache keys bf16
//   [kv_heads, capacity, head_dim] out @8, cache values out @9, args @10. Constant kHeadDim.
//   Launch: {heads + 2 kv_heads, rows} kSimdWidth: x is a query head, then a key head, then a value head.
// D4c off: attention_norm_rope (_bf16): slots @0, @1, @3-7 and args @10 as above, key bf16 [rows, kv_heads, head_dim] out @8;
//   Launch: {heads + kv_heads, rows} kSimdWidth. attention_cache_write (_bf16: value bf16, else f32): key bf16 @0, value @1,
//   position @2, cache keys out @3, cache values out @4, args @5; Launch: {2 kv_heads, rows} kSimdWidth.
// attention_prefill: query bf16 [rows, heads, head_dim] @0, keys @1, values @2, projected query bf16 (for the gate) @3,
//   position int [1] @4, out bf16 [rows, heads, head_dim] out @5, args @6. Causal flash attention over positions
//   [0, position + row], times sigmoid(gate). Constant kHeadDim. Launch: {ceil(rows / kAttentionRows), heads}
//   kAttentionThreads; with kWideAttentionRows where the device has_wide_attention().
// attention_decode (general) and attention_decode_blocked (D7: head_dim 256, 8 query heads a KV head): query bf16 [heads,
//   head_dim] @0, keys @1, values @2, position int [1] @3, partial f32 [splits, heads, head_dim + 2] out @4 {maximum, sum of
//   exp(score - maximum), values weighted by exp(score - maximum)}, args @5. n = *position + 1 positions; split s has those
//   from s * ceil(n / splits) (general) or s * kAttentionBlock (blocked); one without positions has {-INFINITY, 0, zeros}.
//   Constants: kHeadDim, kQueryHeads, kCoalesced. Launch: {splits, heads / kQueryHeads} kAttentionThreads.
// attention_reduce: partial @0, projected query f32 [heads, 2, head_dim] @1 (for the gate), out bf16 [heads, head_dim] out
//   @2, args @3. Constant kHeadDim. Launch: {heads} kAttentionThreads.
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

// argmax_partial: logits f32 [candidates] @0, best f32 [kArgmaxParts] out @1, index int [kArgmaxParts] out @2, args @3.
//   Launch: {kArgmaxParts} kArgmaxThreads; part p has elements p * ceil(candidates / kArgmaxParts) on.
// argmax_final (D2): best @0, index @1, token int [1] out @2 (the next step's slot), args @3. Ties: lower id.
//   Launch: {1} kArgmaxThreads.
// sample_token: logits f32 [candidates] @0 (16-byte aligned), token int [1] out @1, position int [1] @2 (of the token being
//   chosen), args @3: temperature, top-k, top-p, min-p and the counter-based draw in the integers of
//   base/sampling_arithmetic.h: the CPU sampler's token for the same logits. Launch: {1} kSampleThreads.
// All choices are -1 when a logit is NaN or the best is not finite.
struct SampleArgs {
  uint32_t candidates;  // ids below this may be chosen: padding rows of the vocabulary are above
  float scale;          // 2^24 log2(e) / temperature; 0: an infinite temperature
  uint32_t top_k;       // 0: off
  uint32_t top_p;       // in units of 2^-31; 2^31: off
  uint32_t min_p;       // in units of 2^-31; 0: off
  uint32_t seed_low;
  uint32_t seed_high;
};

// advance_position: position int [1] @0, next position int [1] out @1, args @2: next = position + rows.
// Launch: {1} kSimdWidth.
struct AdvanceArgs {
  uint32_t rows;
};

}  // namespace args
}  // namespace lily
