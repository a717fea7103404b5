// gpu/weights.h -- the weights as kernels see them: views of wrapped files, and copies of what is not aligned there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "gpu/pass.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::gpu {

struct MatrixFormatKey {
  std::uint32_t bits = 16;  // 4, 8, or 16 for plain bf16
  std::uint32_t group_size = 64;
  friend bool operator==(const MatrixFormatKey&, const MatrixFormatKey&) = default;
};

struct DeviceMatrix {
  MatrixFormatKey format;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  View codes, scales, biases;  // of one matrix, or of all experts

  // Of one matrix.
  [[nodiscard]] std::uint64_t code_bytes() const { return std::uint64_t{rows} * columns * format.bits / 8; }
  [[nodiscard]] std::uint64_t scale_bytes() const {
    return format.bits == 16 ? 0 : std::uint64_t{rows} * (columns / format.group_size) * 2;
  }
};

// The same matrix of every expert, at equal distances.
struct ExpertMatrices {
  DeviceMatrix matrix;
  std::uint32_t experts = 0;
  std::uint32_t expert_words = 0;   // 4-byte words of codes from one expert to the next
  std::uint32_t expert_scales = 0;  // scales from one expert to the next

  [[nodiscard]] bool contiguous() const {
    return expert_words * 4ULL == matrix.code_bytes() && expert_scales * 2ULL == matrix.scale_bytes();
  }
};

struct DeviceGdnWeights {
  DeviceMatrix in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj;
  View conv1d, decay_rate, dt_bias, norm;  // f32
};

struct DeviceAttentionWeights {
  DeviceMatrix q_proj, k_proj, v_proj, o_proj;
  View q_norm, k_norm;  // f32
};

struct DeviceLayerWeights {
  View input_layernorm, post_attention_layernorm;  // f32
  std::unique_ptr<DeviceGdnWeights> gdn;
  std::unique_ptr<DeviceAttentionWeights> attention;
  DeviceMatrix router, shared_expert_gate, shared_gate_proj, shared_up_proj, shared_down_proj;
  ExpertMatrices gate_proj, up_proj, down_proj;
};

// Memory of the host that weights point into.
struct HostRegion {
  const std::byte* data = nullptr;
  std::uint64_t size = 0;
  std::string label;
};

// The checkpoint's files, one region each.
[[nodiscard]] std::vector<HostRegion> host_regions(const ModelWeights& weights);

// What could not be used in place.
struct CopiedWeights {
  std::uint64_t tensors = 0;
  std::uint64_t bytes = 0;
};

class DeviceWeights {
 public:
  // The regions and `weights` outlive this. Tells `progress` of the regions that the device copies. Throws
  // Error(config) naming a tensor that the GPU engine cannot use.
  DeviceWeights(device::Device& device, const ModelConfig& config, const ModelWeights& weights,
                std::span<const HostRegion> regions, const CopyProgress& progress = {});

  DeviceMatrix embed_tokens, lm_head;
  View norm;              // f32
  View rope_frequencies;  // f32 [rotary_dim / 2]
  View iota;              // int [max(8, num_experts_per_tok)]: 0, 1, 2, ...
  std::vector<DeviceLayerWeights> layers;

  [[nodiscard]] const CopiedWeights& copied() const { return copied_; }

 private:
  CopiedWeights copied_;
  std::vector<std::shared_ptr<device::Buffer>> buffers_;
};

}  // namespace lily::gpu
