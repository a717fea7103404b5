// cpu/session_state.h -- the state of one sequence in host memory: KV caches, recurrent states, convolution windows.
#pragma once

#include <memory>
#include <vector>

#include "cpu/kv_cache.h"
#include "engine/backend.h"
#include "engine/config.h"

namespace lily::cpu {

struct GdnState {
  std::vector<float> recurrent_state;  // [linear_num_value_heads, linear_value_head_dim, linear_key_head_dim]
  std::vector<float> conv_state;       // [linear_conv_kernel_dim - 1, linear_conv_dim], oldest first
};

class CpuSessionState final : public SessionState {
 public:
  explicit CpuSessionState(const ModelConfig& config);
  void reset() override;
  [[nodiscard]] std::size_t bytes() const override;

  [[nodiscard]] GdnState& gdn(std::int64_t layer) { return *gdn_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] KvCache& kv_cache(std::int64_t layer) { return *kv_[static_cast<std::size_t>(layer)]; }

 private:
  std::vector<std::unique_ptr<GdnState>> gdn_;  // [num_hidden_layers], null for attention layers
  std::vector<std::unique_ptr<KvCache>> kv_;    // [num_hidden_layers], null for GDN layers
};

}  // namespace lily::cpu
