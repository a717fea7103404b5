// weights/config.cpp -- consistency checks between the dimensions of a model.
#include "weights/config.h"

#include <cmath>
#include <string>

#include "base/error.h"

namespace lily {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorKind::config, message);
}

void require_positive(std::int64_t value, const char* name) {
  require(value > 0, std::string(name) + " must be positive, not " + std::to_string(value));
}

}  // namespace

void ModelConfig::validate() const {
  require(!layer_types.empty(), "the model has no layers (layer_types is empty)");
  require_positive(hidden_size, "hidden_size");
  require_positive(vocab_size, "vocab_size");
  require_positive(max_position_embeddings, "max_position_embeddings");
  require_positive(num_attention_heads, "num_attention_heads");
  require_positive(num_key_value_heads, "num_key_value_heads");
  require_positive(head_dim, "head_dim");
  require_positive(linear_num_key_heads, "linear_num_key_heads");
  require_positive(linear_num_value_heads, "linear_num_value_heads");
  require_positive(linear_key_head_dim, "linear_key_head_dim");
  require_positive(linear_value_head_dim, "linear_value_head_dim");
  require_positive(linear_conv_kernel_dim, "linear_conv_kernel_dim");
  require_positive(num_experts, "num_experts");
  require_positive(num_experts_per_tok, "num_experts_per_tok");
  require_positive(moe_intermediate_size, "moe_intermediate_size");
  require_positive(shared_expert_intermediate_size, "shared_expert_intermediate_size");
  require(num_attention_heads % num_key_value_heads == 0,
          "num_attention_heads must be a multiple of num_key_value_heads");
  require(linear_num_value_heads % linear_num_key_heads == 0,
          "linear_num_value_heads must be a multiple of linear_num_key_heads");
  require(num_experts_per_tok <= num_experts, "num_experts_per_tok exceeds num_experts");
  require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim,
          "the rotary dimension must be even and at most head_dim");
  require(std::isfinite(rope_theta) && rope_theta > 0.0, "rope_theta must be a positive number");
  require(std::isfinite(rms_norm_eps) && rms_norm_eps >= 0.0, "rms_norm_eps must be a number of at least 0");
}

}  // namespace lily
