// cpu/gdn_block.cpp -- the Gated DeltaNet mixer (Yang et al., "Gated Delta Networks", arXiv 2412.06464).
//
// Everything between the input projections and the output projection belongs to one key head and the value heads that
// share it, so one task does it all for every row of the chunk, and no thread waits for another.
#include <cmath>

#include "cpu/cpu_backend.h"

namespace lily::cpu {
namespace {

constexpr float kL2NormEps = 1e-6F;

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

}  // namespace

// decay_ and beta_ hold the projections a and b [rows, value heads]; they become exp(-exp(A_log) softplus(a + dt_bias))
// and sigmoid(b).
void CpuBackend::compute_gates(const GdnWeights& gdn) {
  const std::int64_t heads = config_.linear_num_value_heads;
  for_rows(0, rows_, [&](std::int64_t row, std::int64_t) {
    float* decay = decay_ + row * heads;
    float* beta = beta_ + row * heads;
    for (std::int64_t head = 0; head < heads; ++head) {
      const auto i = static_cast<std::size_t>(head);
      decay[head] = std::exp(-gdn.decay_rate[i] * softplus(decay[head] + gdn.dt_bias[i]));
      beta[head] = sigmoid(beta[head]);
    }
  });
}

void CpuBackend::gdn_key_head(const GdnWeights& gdn, GdnState& state, std::int64_t key_head,
                              std::int64_t first_needed_row) {
  const std::int64_t key_dim = config_.linear_key_head_dim;
  const std::int64_t value_dim = config_.linear_value_head_dim;
  const std::int64_t channels = config_.linear_conv_dim();
  const std::int64_t heads_per_key = config_.linear_num_value_heads / config_.linear_num_key_heads;
  const std::int64_t query_channel = key_head * key_dim;
  const std::int64_t key_channel = config_.linear_key_dim() + query_channel;
  const std::int64_t value_channel = 2 * config_.linear_key_dim() + key_head * heads_per_key * value_dim;
  const auto convolve = [&](std::int64_t begin, std::int64_t count) {
    kernels_.causal_conv_silu(qkv_, state.conv_state.data(), gdn.conv1d.data(), rows_, channels,
                              config_.linear_conv_kernel_dim, begin, begin + count, qkv_);
  };
  convolve(query_channel, key_dim);
  convolve(key_channel, key_dim);
  convolve(value_channel, heads_per_key * value_dim);

  const float query_scale = 1.0F / std::sqrt(static_cast<float>(key_dim));
  for (std::int64_t row = 0; row < rows_; ++row) {
    kernels_.l2_normalize(qkv_ + row * channels + query_channel, key_dim, kL2NormEps, query_scale);
    kernels_.l2_normalize(qkv_ + row * channels + key_channel, key_dim, kL2NormEps, 1.0F);
  }
  for (std::int64_t i = 0; i < heads_per_key; ++i) {
    const std::int64_t head = key_head * heads_per_key + i;
    float* mixed = mixed_ + head * value_dim;
    kernels_.gdn_scan({.tokens = rows_,
                       .key_dim = key_dim,
                       .value_begin = 0,
                       .value_end = value_dim,
                       .query = qkv_ + query_channel,
                       .key = qkv_ + key_channel,
                       .value = qkv_ + value_channel + i * value_dim,
                       .qkv_stride = channels,
                       .decay = decay_ + head,
                       .beta = beta_ + head,
                       .gate_stride = config_.linear_num_value_heads,
                       .state = state.recurrent_state.data() + head * value_dim * key_dim,
                       .out = mixed,
                       .out_stride = config_.linear_value_dim()});
    for (std::int64_t row = first_needed_row; row < rows_; ++row) {
      float* out = mixed + row * config_.linear_value_dim();
      kernels_.rms_norm_gated(out, gdn.norm.data(), z_ + row * config_.linear_value_dim() + head * value_dim, value_dim,
                              static_cast<float>(config_.rms_norm_eps), out);
    }
  }
}

void CpuBackend::gdn_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const GdnWeights& gdn = *weights.gdn;
  GdnState& gdn_state = static_cast<CpuSessionState&>(state).gdn(layer);
  const std::int64_t value_dim = config_.linear_value_dim();
  workspace_.divide({{&qkv_, rows_ * config_.linear_conv_dim()},
                     {&z_, rows_ * value_dim},
                     {&decay_, rows_ * config_.linear_num_value_heads},
                     {&beta_, rows_ * config_.linear_num_value_heads},
                     {&mixed_, rows_ * value_dim}});

  normalize_rows(0, weights.input_layernorm, {&gdn.in_proj_qkv, &gdn.in_proj_z, &gdn.in_proj_a, &gdn.in_proj_b});
  multiply({{&gdn.in_proj_qkv, qkv_}, {&gdn.in_proj_z, z_}, {&gdn.in_proj_a, decay_}, {&gdn.in_proj_b, beta_}}, input_);
  compute_gates(gdn);
  pool_.parallel_for(config_.linear_num_key_heads, [&](std::int64_t key_head, std::int64_t) {
    gdn_key_head(gdn, gdn_state, key_head, first_needed_row);
  });
  output_.bind(mixed_ + first_needed_row * value_dim, rows_ - first_needed_row, value_dim, {&gdn.out_proj});
  quantize_all(output_);
  multiply({{&gdn.out_proj, hidden_row(first_needed_row), true}}, output_);
}

}  // namespace lily::cpu
