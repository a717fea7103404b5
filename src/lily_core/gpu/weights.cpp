// gpu/weights.cpp -- every weight of the model, placed.
#include "gpu/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "gpu/weight_placer.h"

namespace lily::gpu {
namespace {

std::unique_ptr<DeviceGdnWeights> place_gdn(WeightPlacer& placer, const GdnWeights& gdn, const std::string& prefix) {
  auto placed = std::make_unique<DeviceGdnWeights>();
  placed->in_proj_qkv = placer.matrix(prefix + "in_proj_qkv", gdn.in_proj_qkv);
  placed->in_proj_z = placer.matrix(prefix + "in_proj_z", gdn.in_proj_z);
  placed->in_proj_b = placer.matrix(prefix + "in_proj_b", gdn.in_proj_b);
  placed->in_proj_a = placer.matrix(prefix + "in_proj_a", gdn.in_proj_a);
  placed->out_proj = placer.matrix(prefix + "out_proj", gdn.out_proj);
  placed->conv1d = placer.vector(gdn.conv1d);
  placed->decay_rate = placer.vector(gdn.decay_rate);
  placed->dt_bias = placer.vector(gdn.dt_bias);
  placed->norm = placer.vector(gdn.norm);
  return placed;
}

std::unique_ptr<DeviceAttentionWeights> place_attention(WeightPlacer& placer, const AttentionWeights& attention,
                                                        const std::string& prefix) {
  auto placed = std::make_unique<DeviceAttentionWeights>();
  placed->q_proj = placer.matrix(prefix + "q_proj", attention.q_proj);
  placed->k_proj = placer.matrix(prefix + "k_proj", attention.k_proj);
  placed->v_proj = placer.matrix(prefix + "v_proj", attention.v_proj);
  placed->o_proj = placer.matrix(prefix + "o_proj", attention.o_proj);
  placed->q_norm = placer.vector(attention.q_norm);
  placed->k_norm = placer.vector(attention.k_norm);
  return placed;
}

ExpertMatrices place_experts(WeightPlacer& placer, const MoeWeights& moe, Matrix MlpWeights::* field,
                             const std::string& name) {
  std::vector<Matrix> matrices;
  matrices.reserve(moe.experts.size());
  for (const MlpWeights& expert : moe.experts) matrices.push_back(expert.*field);
  return placer.experts(name, matrices);
}

DeviceLayerWeights place_layer(WeightPlacer& placer, const LayerWeights& layer, const std::string& prefix) {
  DeviceLayerWeights placed;
  placed.input_layernorm = placer.vector(layer.input_layernorm);
  placed.post_attention_layernorm = placer.vector(layer.post_attention_layernorm);
  if (layer.gdn != nullptr) placed.gdn = place_gdn(placer, *layer.gdn, prefix + "linear_attn.");
  if (layer.attention != nullptr) placed.attention = place_attention(placer, *layer.attention, prefix + "self_attn.");
  const std::string mlp = prefix + "mlp.";
  placed.router = placer.matrix(mlp + "gate", layer.moe.router);
  placed.shared_expert_gate = placer.matrix(mlp + "shared_expert_gate", layer.moe.shared_expert_gate);
  placed.shared_gate_proj = placer.matrix(mlp + "shared_expert.gate_proj", layer.moe.shared_expert.gate_proj);
  placed.shared_up_proj = placer.matrix(mlp + "shared_expert.up_proj", layer.moe.shared_expert.up_proj);
  placed.shared_down_proj = placer.matrix(mlp + "shared_expert.down_proj", layer.moe.shared_expert.down_proj);
  placed.gate_proj = place_experts(placer, layer.moe, &MlpWeights::gate_proj, mlp + "experts.gate_proj");
  placed.up_proj = place_experts(placer, layer.moe, &MlpWeights::up_proj, mlp + "experts.up_proj");
  placed.down_proj = place_experts(placer, layer.moe, &MlpWeights::down_proj, mlp + "experts.down_proj");
  return placed;
}

std::vector<float> rope_frequencies_of(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim);
    frequencies.push_back(static_cast<float>(std::pow(config.rope_theta, exponent)));
  }
  return frequencies;
}

}  // namespace

std::vector<HostRegion> host_regions(const ModelWeights& weights) {
  std::vector<HostRegion> regions;
  regions.reserve(weights.files.size());
  for (const MappedFile& file : weights.files) {
    regions.push_back({file.bytes(0, file.size()), file.size(), file.path()});
  }
  return regions;
}

DeviceWeights::DeviceWeights(device::Device& device, const ModelConfig& config, const ModelWeights& weights,
                             std::span<const HostRegion> regions, const CopyProgress& progress) {
  WeightPlacer placer(device, regions, progress);
  const std::vector<float> frequencies = rope_frequencies_of(config);
  std::vector<std::int32_t> counting(static_cast<std::size_t>(std::max<std::int64_t>(8, config.num_experts_per_tok)));
  std::iota(counting.begin(), counting.end(), 0);
  const auto place_all = [&] {
    embed_tokens = placer.matrix("embed_tokens", weights.embed_tokens);
    lm_head = weights.lm_head.weight == weights.embed_tokens.weight ? embed_tokens
                                                                    : placer.matrix("lm_head", weights.lm_head);
    norm = placer.vector(weights.norm);
    rope_frequencies = placer.vector(frequencies);
    iota = placer.values(std::as_bytes(std::span(counting)));
    layers.clear();
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
      layers.push_back(place_layer(placer, weights.layers[i], "layers." + std::to_string(i) + "."));
    }
  };
  place_all();
  placer.begin_placing();
  place_all();
  copied_ = placer.copied();
  buffers_ = placer.take_buffers();
}

}  // namespace lily::gpu
