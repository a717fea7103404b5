// weights/config.h -- dimensions of a qwen3_5_moe text model, already validated against each other.
#pragma once

#include <cstdint>
#include <vector>

namespace lily {

enum class LayerType : std::uint8_t { linear_attention, full_attention };

struct ModelConfig {
  std::int64_t hidden_size = 0;
  std::int64_t vocab_size = 0;  // rows of the embedding, padding included
  std::int64_t max_position_embeddings = 0;
  std::vector<LayerType> layer_types;  // [num_hidden_layers]

  // Gated attention.
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;  // leading dimensions of each head that are rotated; even
  double rope_theta = 0.0;

  // Gated DeltaNet.
  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;  // a multiple of linear_num_key_heads
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 0;

  // Mixture of experts.
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;
  bool norm_topk_prob = true;

  double rms_norm_eps = 1e-6;

  [[nodiscard]] std::int64_t num_hidden_layers() const { return static_cast<std::int64_t>(layer_types.size()); }
  [[nodiscard]] std::int64_t linear_key_dim() const { return linear_num_key_heads * linear_key_head_dim; }
  [[nodiscard]] std::int64_t linear_value_dim() const { return linear_num_value_heads * linear_value_head_dim; }
  // Channels of the causal convolution: [query | key | value].
  [[nodiscard]] std::int64_t linear_conv_dim() const { return 2 * linear_key_dim() + linear_value_dim(); }

  // Throws Error(config) naming the first dimension that is not positive or does not fit the others.
  void validate() const;
};

}  // namespace lily
