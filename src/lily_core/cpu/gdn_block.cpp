// cpu/gdn_block.cpp -- projections, and one task for each key head.
//
// Everything between the input projections and the output projection belongs to one key head and the value heads that
// share it, so one task does it all for every row of the chunk, and no thread waits for another.
#include "cpu/gdn_block.h"

#include <cmath>

namespace lily::cpu {
namespace {

constexpr float kL2NormEps = 1e-6F;

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

}  // namespace

// decay and beta hold the projections a and b [rows, value heads]; they become exp(-exp(A_log) softplus(a + dt_bias))
// and sigmoid(b).
void GdnBlock::compute_gates(const GdnWeights& gdn, const Arrays& arrays) {
  const std::int64_t heads = config_.linear_num_value_heads;
  compute_.for_rows(0, arrays.rows, [&](std::int64_t row) {
    float* decay = arrays.decay + row * heads;
    float* beta = arrays.beta + row * heads;
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto i = static_cast<std::size_t>(head);
      decay[head] = std::exp(-gdn.decay_rate[i] * softplus(decay[head] + gdn.dt_bias[i]));
      beta[head] = sigmoid(beta[head]);
    }
  });
}

void GdnBlock::mix_key_head(const GdnWeights& gdn, GdnState& state, const Arrays& arrays, std::int64_t key_head,
                            std::int64_t first_needed_row) const {
  const KernelTable& kernels = compute_.kernels();
  const std::int64_t key_dim = config_.linear_key_head_dim;
  const std::int64_t value_dim = config_.linear_value_head_dim;
  const std::int64_t channels = config_.linear_conv_dim();
  const std::int64_t heads_per_key = config_.linear_num_value_heads / config_.linear_num_key_heads;
  const std::int64_t query_channel = key_head * key_dim;
  const std::int64_t key_channel = config_.linear_key_dim() + query_channel;
  const std::int64_t value_channel = 2 * config_.linear_key_dim() + key_head * heads_per_key * value_dim;
  const auto convolve = [&](std::int64_t begin, std::int64_t count) {
    kernels.causal_conv_silu(arrays.qkv, state.conv_state.data(), gdn.conv1d.data(), arrays.rows, channels,
                             config_.linear_conv_kernel_dim, begin, begin + count, arrays.qkv);
  };
  convolve(query_channel, key_dim);
  convolve(key_channel, key_dim);
  convolve(value_channel, heads_per_key * value_dim);

  const float query_scale = 1.0F / std::sqrt(static_cast<float>(key_dim));
  for (std::int64_t row = 0; row < arrays.rows; ++row) {
    kernels.l2_normalize(arrays.qkv + row * channels + query_channel, key_dim, kL2NormEps, query_scale);
    kernels.l2_normalize(arrays.qkv + row * channels + key_channel, key_dim, kL2NormEps, 1.0F);
  }
  for (std::int64_t i = 0; i < heads_per_key; ++i) {
    const std::int64_t head = key_head * heads_per_key + i;
    float* mixed = arrays.mixed + head * value_dim;
    kernels.gdn_scan({.tokens = arrays.rows,
                      .key_dim = key_dim,
                      .value_begin = 0,
                      .value_end = value_dim,
                      .query = arrays.qkv + query_channel,
                      .key = arrays.qkv + key_channel,
                      .value = arrays.qkv + value_channel + i * value_dim,
                      .qkv_stride = channels,
                      .decay = arrays.decay + head,
                      .beta = arrays.beta + head,
                      .gate_stride = config_.linear_num_value_heads,
                      .state = state.recurrent_state.data() + head * value_dim * key_dim,
                      .out = mixed,
                      .out_stride = config_.linear_value_dim()});
    for (std::int64_t row = first_needed_row; row < arrays.rows; ++row) {
      float* out = mixed + row * config_.linear_value_dim();
      kernels.rms_norm_gated(out, gdn.norm.data(), arrays.z + row * config_.linear_value_dim() + head * value_dim,
                             value_dim, static_cast<float>(config_.rms_norm_eps), out);
    }
  }
}

GdnBlock::Arrays GdnBlock::allocate(Chunk& chunk) const {
  Arrays arrays{.rows = chunk.rows()};
  const std::int64_t rows = chunk.rows();
  chunk.workspace().divide({{&arrays.qkv, rows * config_.linear_conv_dim()},
                            {&arrays.z, rows * config_.linear_value_dim()},
                            {&arrays.decay, rows * config_.linear_num_value_heads},
                            {&arrays.beta, rows * config_.linear_num_value_heads},
                            {&arrays.mixed, rows * config_.linear_value_dim()}});
  return arrays;
}

void GdnBlock::run(const LayerWeights& weights, GdnState& state, Chunk& chunk, std::int64_t first_needed_row) {
  const GdnWeights& gdn = *weights.gdn;
  const std::int64_t value_dim = config_.linear_value_dim();
  const Arrays arrays = allocate(chunk);
  chunk.normalize(0, arrays.rows, weights.input_layernorm,
                  {&gdn.in_proj_qkv, &gdn.in_proj_z, &gdn.in_proj_a, &gdn.in_proj_b});
  compute_.multiply({{&gdn.in_proj_qkv, arrays.qkv},
                     {&gdn.in_proj_z, arrays.z},
                     {&gdn.in_proj_a, arrays.decay},
                     {&gdn.in_proj_b, arrays.beta}},
                    chunk.input());
  compute_gates(gdn, arrays);
  compute_.parallel_for(config_.linear_num_key_heads, [&](std::int64_t key_head, std::int64_t /*worker*/) {
    mix_key_head(gdn, state, arrays, key_head, first_needed_row);
  });
  Activations& output = chunk.output();
  output.bind(arrays.mixed + first_needed_row * value_dim, arrays.rows - first_needed_row, value_dim, {&gdn.out_proj});
  compute_.quantize(output);
  compute_.multiply({{&gdn.out_proj, chunk.hidden(first_needed_row), true}}, output);
}

}  // namespace lily::cpu
