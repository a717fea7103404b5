// cpu/kernels.h -- the table of CPU kernels; one instance for each instruction set, chosen at run time.
//
// Arithmetic contract, the same for every instruction set:
// - Activations for an affine (quantized) matrix are stored in 16-bit block fixed point: in each group of
//   group_size columns x[k] = scale * q[k], q = 256 * high + low, |q| <= 32512 = 127 * 256, high and low int8.
//   The rounding error is at most 1/65024 of the largest magnitude of the group: norm-wise finer than bfloat16.
// - A group's sum of code * q is an exact int32, whatever the order, so kernels may split it freely.
// - Across groups, in ascending order, for each output:
//       y = fma(float(group_sum), weight_scale * x_scale, y); y = fma(weight_bias, x_sum, y)
//   so a row's result does not depend on how many rows are multiplied with it: decode, any prefill chunk and any
//   instruction set with fused multiply-add give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "weights/matrix.h"

namespace lily::cpu {

// Order of the int8 halves inside a row. Kernels unpack 4-bit codes of one 32-bit word with two masks, which yields
// its columns as (0,2,4,6) and (1,3,5,7); the activations are stored in that order once instead.
enum class ColumnOrder : std::uint8_t { natural, nibble };  // natural for affine8, nibble for affine4

// Activations ready for affine matrices. A view.
struct QuantizedRows {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t stride = 0;  // bytes between rows of high and low: a multiple of 64, see row_stride
  std::int32_t group_size = 0;
  ColumnOrder order = ColumnOrder::natural;
  std::int8_t* high = nullptr;  // [rows, columns], 64-byte aligned
  std::int8_t* low = nullptr;   // [rows, columns], 64-byte aligned
  float* scales = nullptr;      // [rows, columns / group_size]
  float* sums = nullptr;        // [rows, columns / group_size] sums of the unrounded values

  [[nodiscard]] std::int64_t groups() const { return columns / group_size; }
};

// A stride for int8 rows that puts the same columns of neighbouring rows into different cache sets.
[[nodiscard]] constexpr std::int64_t row_stride(std::int64_t columns) { return (columns + 63) / 128 * 128 + 64; }

// y[m, n] for n in [row_begin, row_end) of the weight's rows and m in [0, row_count) of the activation rows.
struct MatmulArgs {
  const Matrix* weight = nullptr;
  std::int64_t row_begin = 0;               // a multiple of kRowTile
  std::int64_t row_end = 0;                 // a multiple of kRowTile, or weight->rows
  const QuantizedRows* x = nullptr;         // affine weights
  const float* x_plain = nullptr;           // plain weights: [*, columns] float32
  std::int64_t x_stride = 0;                // plain weights: floats between rows of x_plain
  const std::int32_t* row_index = nullptr;  // [row_count] rows of x to use; nullptr: 0, 1, 2, ...
  std::int64_t row_count = 0;
  float* out = nullptr;          // out[m * out_stride + n]; overwritten
  std::int64_t out_stride = 0;   // floats
  std::byte* scratch = nullptr;  // 64-byte aligned, KernelTable::matmul_scratch_bytes(columns) bytes, one per thread
  const Matrix* next_weight = nullptr;  // what the thread probably reads next, for prefetching; nullptr: unknown
  std::int64_t next_row = 0;            // of next_weight
};

inline constexpr std::int64_t kRowTile = 16;

// One value head of the gated delta rule over `tokens` steps (Yang et al., "Gated Delta Networks", 2024):
//   S = decay * S;  d = beta * (v - S k);  S += d k^T;  y = S q
struct GdnScanArgs {
  std::int64_t tokens = 0;
  std::int64_t key_dim = 0;
  std::int64_t value_begin = 0;  // value rows [value_begin, value_end) of the head: rows are independent
  std::int64_t value_end = 0;
  const float* query = nullptr;  // [tokens, key_dim], normalised and scaled; row stride qkv_stride floats
  const float* key = nullptr;    // [tokens, key_dim], normalised; row stride qkv_stride
  const float* value = nullptr;  // [tokens, value_dim]; row stride qkv_stride
  std::int64_t qkv_stride = 0;
  const float* decay = nullptr;  // decay[t * gate_stride], in (0, 1]
  const float* beta = nullptr;   // beta[t * gate_stride], in (0, 1)
  std::int64_t gate_stride = 0;
  float* state = nullptr;  // [value_dim, key_dim] float32, updated in place
  float* out = nullptr;    // [tokens, value_dim]; row stride out_stride floats
  std::int64_t out_stride = 0;
};

// A span of consecutive cached positions of one key/value head: keys [count, head_dim], values [count, head_dim].
struct KvSpan {
  const std::uint16_t* keys = nullptr;
  const std::uint16_t* values = nullptr;
  std::int64_t count = 0;
};

enum class KvType : std::uint8_t { bfloat16, float16 };

// Attention of `rows` query rows (consecutive positions x the query heads that share one key/value head) against the
// cache: scores from 16-bit codes of queries and keys (cpu/kernels/attention_codes.h), softmax and sums in float32. Row
// r may see the first visible[r] positions. The order of operations for a row depends on its visible count only, never
// on the rows beside it.
struct AttentionArgs {
  std::int64_t rows = 0;
  std::int64_t head_dim = 0;
  const float* const* query = nullptr;    // [rows] pointers to [head_dim], already scaled by 1/sqrt(head_dim)
  float* const* out = nullptr;            // [rows] pointers to [head_dim]
  const std::int64_t* visible = nullptr;  // [rows], each >= 1 and non-decreasing
  const KvSpan* spans = nullptr;          // [span_count], in order of position; they hold at least visible[rows-1]
  std::int64_t span_count = 0;
  KvType kv_type = KvType::bfloat16;
  std::byte* scratch = nullptr;  // 64-byte aligned, attention_scratch_bytes(rows, head_dim)
};

struct KernelTable {
  const char* name = nullptr;  // "portable", "avx2", "avx512", "amx", "neon", "i8mm"

  // x [columns] -> one row of QuantizedRows. columns is a multiple of group_size. Not finite input gives NaN scales.
  void (*quantize_row)(const float* x, std::int64_t columns, std::int32_t group_size, ColumnOrder order,
                       std::int8_t* high, std::int8_t* low, float* scales, float* sums) = nullptr;
  std::size_t (*matmul_scratch_bytes)(std::int64_t columns) = nullptr;
  void (*matmul_affine)(const MatmulArgs& args) = nullptr;  // weight->format affine4 or affine8
  void (*matmul_plain)(const MatmulArgs& args) = nullptr;   // weight->format plain; float32 accumulate

  // out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps); out may be x.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t size, float eps, float* out) = nullptr;
  // out[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps) * silu(gate[i]); out may be x.
  void (*rms_norm_gated)(const float* x, const float* weight, const float* gate, std::int64_t size, float eps,
                         float* out) = nullptr;
  // x = x / sqrt(sum(x^2) + eps) * scale
  void (*l2_normalize)(float* x, std::int64_t size, float eps, float scale) = nullptr;
  // out[i] = silu(gate[i]) * up[i]; out may be gate or up.
  void (*silu_multiply)(const float* gate, const float* up, std::int64_t size, float* out) = nullptr;
  // x[i] *= sigmoid(gate[i])
  void (*sigmoid_multiply)(float* x, const float* gate, std::int64_t size) = nullptr;
  // y[i] = fma(alpha, x[i], y[i])
  void (*axpy)(float alpha, const float* x, std::int64_t size, float* y) = nullptr;
  // probabilities = softmax(logits), float32; may be the same array.
  void (*softmax)(const float* logits, std::int64_t size, float* probabilities) = nullptr;
  // Rotate-half RoPE of the first rotary_dim values: cosine, sine [rotary_dim / 2] for this position.
  void (*rope)(float* x, std::int64_t rotary_dim, const float* cosine, const float* sine) = nullptr;
  // Causal depthwise convolution and silu for channels [channel_begin, channel_end):
  //   out[t, c] = silu(sum_j taps[c, j] * in[t - (kernel-1) + j, c]); positions before 0 come from history.
  // history [kernel-1, channels], oldest first, is read and then advanced by `tokens`. Rows of in and out have
  // stride channels. out may be in (rows are overwritten only after their last use).
  void (*causal_conv_silu)(const float* in, float* history, const float* taps, std::int64_t tokens,
                           std::int64_t channels, std::int64_t kernel, std::int64_t channel_begin,
                           std::int64_t channel_end, float* out) = nullptr;
  void (*gdn_scan)(const GdnScanArgs& args) = nullptr;
  std::size_t (*attention_scratch_bytes)(std::int64_t rows, std::int64_t head_dim) = nullptr;
  void (*attention)(const AttentionArgs& args) = nullptr;
  // float32 [size] -> cache type, round to nearest even; float16 saturates at +-65504.
  void (*store_kv)(const float* x, std::int64_t size, KvType type, std::uint16_t* out) = nullptr;
};

}  // namespace lily::cpu
