// cpu/session_state.cpp -- allocation and reset of the per-layer state.
#include "cpu/session_state.h"

#include <algorithm>

namespace lily::cpu {

CpuSessionState::CpuSessionState(const ModelConfig& config) {
  const auto recurrent_size = static_cast<std::size_t>(config.linear_num_value_heads * config.linear_value_head_dim *
                                                       config.linear_key_head_dim);
  const auto conv_size = static_cast<std::size_t>((config.linear_conv_kernel_dim - 1) * config.linear_conv_dim());
  for (const LayerType type : config.layer_types) {
    const bool linear = type == LayerType::linear_attention;
    gdn_.push_back(linear ? std::make_unique<GdnState>() : nullptr);
    kv_.push_back(linear ? nullptr : std::make_unique<KvCache>(config.num_key_value_heads, config.head_dim));
    if (linear) {
      gdn_.back()->recurrent_state.assign(recurrent_size, 0.0F);
      gdn_.back()->conv_state.assign(conv_size, 0.0F);
    }
  }
}

void CpuSessionState::reset() {
  for (auto& state : gdn_) {
    if (state == nullptr) continue;
    std::fill(state->recurrent_state.begin(), state->recurrent_state.end(), 0.0F);
    std::fill(state->conv_state.begin(), state->conv_state.end(), 0.0F);
  }
  position_ = 0;
}

std::size_t CpuSessionState::bytes() const {
  std::size_t total = 0;
  for (const auto& state : gdn_) {
    if (state != nullptr) total += (state->recurrent_state.size() + state->conv_state.size()) * sizeof(float);
  }
  for (const auto& cache : kv_) {
    if (cache != nullptr) total += cache->bytes();
  }
  return total;
}

}  // namespace lily::cpu
