// weights/weights.h -- the weights of a model: views into mapped files, by layer and role.
#pragma once

#include <memory>
#include <vector>

#include "weights/config.h"
#include "weights/mapped_file.h"
#include "weights/matrix.h"
#include "weights/sources.h"

namespace lily {

struct GdnWeights {
  Matrix in_proj_qkv;             // [linear_conv_dim, hidden_size]
  Matrix in_proj_z;               // [linear_value_dim, hidden_size]
  Matrix in_proj_b;               // [linear_num_value_heads, hidden_size]
  Matrix in_proj_a;               // [linear_num_value_heads, hidden_size]
  Matrix out_proj;                // [hidden_size, linear_value_dim]
  std::vector<float> conv1d;      // [linear_conv_dim, linear_conv_kernel_dim], oldest tap first
  std::vector<float> decay_rate;  // [linear_num_value_heads] exp(A_log)
  std::vector<float> dt_bias;     // [linear_num_value_heads]
  std::vector<float> norm;        // [linear_value_head_dim]
};

struct AttentionWeights {
  Matrix q_proj;              // [num_attention_heads * 2 * head_dim, hidden_size], per head [query | gate]
  Matrix k_proj;              // [num_key_value_heads * head_dim, hidden_size]
  Matrix v_proj;              // [num_key_value_heads * head_dim, hidden_size]
  Matrix o_proj;              // [hidden_size, num_attention_heads * head_dim]
  std::vector<float> q_norm;  // [head_dim]
  std::vector<float> k_norm;  // [head_dim]
};

struct MlpWeights {
  Matrix gate_proj;  // [intermediate_size, hidden_size]
  Matrix up_proj;    // [intermediate_size, hidden_size]
  Matrix down_proj;  // [hidden_size, intermediate_size]
};

struct MoeWeights {
  Matrix router;              // [num_experts, hidden_size]
  Matrix shared_expert_gate;  // [1, hidden_size]
  MlpWeights shared_expert;
  std::vector<MlpWeights> experts;  // [num_experts]
};

struct LayerWeights {
  std::vector<float> input_layernorm;           // [hidden_size]
  std::vector<float> post_attention_layernorm;  // [hidden_size]
  std::unique_ptr<GdnWeights> gdn;              // linear_attention layers
  std::unique_ptr<AttentionWeights> attention;  // full_attention layers
  MoeWeights moe;
};

struct ModelWeights {
  std::vector<MappedFile> files;
  Matrix embed_tokens;      // [vocab_size, hidden_size]
  Matrix lm_head;           // [vocab_size, hidden_size]
  std::vector<float> norm;  // [hidden_size]
  std::vector<LayerWeights> layers;

  // Maps or reads the files and binds every weight of `config`. Throws Error(checkpoint) naming what is missing or
  // misshapen.
  static ModelWeights bind(const ModelConfig& config, const CheckpointSource& source, FileAccess access);
};

}  // namespace lily
