// cpu/gdn_block.h -- the Gated DeltaNet mixer (Yang et al., "Gated Delta Networks", arXiv 2412.06464).
#pragma once

#include "cpu/chunk.h"
#include "cpu/compute.h"
#include "cpu/session_state.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::cpu {

class GdnBlock {
 public:
  GdnBlock(const ModelConfig& config, Compute& compute) : config_(config), compute_(compute) {}

  // hidden += mixer(norm(hidden)). Every row advances the state; residual rows below first_needed_row are unchanged.
  void run(const LayerWeights& weights, GdnState& state, Chunk& chunk, std::int64_t first_needed_row);

 private:
  // Of one chunk, in its workspace.
  struct Arrays {
    float* qkv = nullptr;    // [rows, linear_conv_dim]
    float* z = nullptr;      // [rows, linear_value_dim]
    float* decay = nullptr;  // [rows, linear_num_value_heads] projection a, then the decay
    float* beta = nullptr;   // [rows, linear_num_value_heads] projection b, then beta
    float* mixed = nullptr;  // [rows, linear_value_dim]
    std::int64_t rows = 0;
  };

  [[nodiscard]] Arrays allocate(Chunk& chunk) const;
  void compute_gates(const GdnWeights& gdn, const Arrays& arrays);
  void mix_key_head(const GdnWeights& gdn, GdnState& state, const Arrays& arrays, std::int64_t key_head,
                    std::int64_t first_needed_row) const;

  const ModelConfig& config_;
  Compute& compute_;
};

}  // namespace lily::cpu
