// gpu/layer_encoder.h -- what the layers of both passes have in common: arguments of kernels, and launches that differ
// only in the number of rows and in the type of what the projections gave.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/encoder.h"
#include "gpu/state_views.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

// The type in which a pass keeps the results of its projections.
enum class ProjectedType : std::uint8_t { float32, bfloat16 };

// What the convolution makes of a Gated DeltaNet layer's projections, for the scan.
struct GdnScanInputs {
  View query, key, value;  // bf16 [rows, linear_key_dim or linear_value_dim]
  View decay, beta;        // f32 [rows, value_heads]
};

class LayerEncoder {
 protected:
  LayerEncoder(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
               std::uint32_t rows, ProjectedType type);

  [[nodiscard]] args::GdnArgs gdn_args(std::uint32_t tokens) const;
  [[nodiscard]] args::AttentionArgs attention_args(std::uint32_t rows, std::uint32_t splits) const;

  // Convolution and gates over all rows.
  [[nodiscard]] GdnScanInputs convolve(const DeviceGdnWeights& gdn, const GdnViews& state, const View& qkv,
                                       const View& a, const View& b);
  // Slots 0 to 6 of the scanning kernels.
  [[nodiscard]] static std::vector<Operand> scan_operands(const GdnScanInputs& inputs, const GdnViews& state);
  // Norm and RoPE of queries and keys, and all rows' keys and values into the cache; prepared bf16 [rows, heads,
  // head_dim].
  void prepare_attention(const DeviceAttentionWeights& attention, const CacheViews& cache, const View& query,
                         const View& key, const View& value, const View& prepared,
                         const args::AttentionArgs& arguments);
  // The experts of each row and their weights, from the router's logits.
  void route(const View& logits, std::uint32_t rows, const View& chosen, const View& weight);
  // Adds the experts' results, bf16 [assignments, hidden_size] by place, and the shared one's to the residual rows.
  void combine_experts(const View& routed, const View& place_of, const View& weight, const View& shared,
                       const View& shared_gate, std::uint32_t rows, const View& hidden);

  Encoder& encoder_;
  const Options& options_;
  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const StateViews& state_;
  const std::uint32_t rows_;
  const View hidden_;  // f32 [rows, hidden_size], the residual stream

 private:
  const ProjectedType type_;
};

}  // namespace lily::gpu
