// cpu/session_state.cpp -- allocation, sharing and reset of the per-layer state, and its tensors for files.
#include "cpu/session_state.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>

namespace lily::cpu {
namespace {

std::size_t element_count(const std::vector<std::int64_t>& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

// Every layer has two tensors: recurrent and convolution state, or keys and values.
constexpr std::size_t kTensorsPerLayer = 2;

}  // namespace

CpuSessionState::CpuSessionState(const ModelConfig& config, KvType kv_type) : config_(config), kv_type_(kv_type) {
  // One empty state for all layers: each layer copies it when it computes; a restored session never does.
  const auto empty = empty_gdn_state();
  for (const LayerType type : config_.layer_types) {
    const bool linear = type == LayerType::linear_attention;
    gdn_.push_back(linear ? empty : nullptr);
    kv_.emplace_back();
    if (!linear) kv_.back().emplace(config_.num_key_value_heads, config_.head_dim);
  }
}

std::vector<std::int64_t> CpuSessionState::recurrent_shape() const {
  return {config_.linear_num_value_heads, config_.linear_value_head_dim, config_.linear_key_head_dim};
}

std::vector<std::int64_t> CpuSessionState::conv_shape() const {
  return {config_.linear_conv_kernel_dim - 1, config_.linear_conv_dim()};
}

std::shared_ptr<GdnState> CpuSessionState::empty_gdn_state() const {
  auto state = std::make_shared<GdnState>();
  state->recurrent_state.assign(element_count(recurrent_shape()), 0.0F);
  state->conv_state.assign(element_count(conv_shape()), 0.0F);
  return state;
}

void CpuSessionState::reset() {
  for (auto& state : gdn_) {
    if (state == nullptr) continue;
    if (state.use_count() > 1) {
      state = empty_gdn_state();
      continue;
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // after whatever the last other holder read
    std::fill(state->recurrent_state.begin(), state->recurrent_state.end(), 0.0F);
    std::fill(state->conv_state.begin(), state->conv_state.end(), 0.0F);
  }
  for (auto& cache : kv_) {
    if (cache) cache->release_shared();
  }
  position_ = 0;
}

std::unique_ptr<SessionState> CpuSessionState::clone() const {
  auto copy = std::make_unique<CpuSessionState>(*this);
  for (auto& cache : copy->kv_) {
    if (cache) cache->truncate(position_);
  }
  return copy;
}

void CpuSessionState::visit_memory(const MemoryVisitor& visit) const {
  for (const auto& state : gdn_) {
    if (state == nullptr) continue;
    const std::size_t elements = state->recurrent_state.size() + state->conv_state.size();
    visit(state.get(), elements * sizeof(float), state.use_count() > 1);
  }
  for (const auto& cache : kv_) {
    if (cache) cache->visit_blocks(visit);
  }
}

GdnState& CpuSessionState::gdn(std::int64_t layer) {
  auto& state = gdn_[static_cast<std::size_t>(layer)];
  if (state.use_count() > 1) {
    state = std::make_shared<GdnState>(*state);
  } else {
    std::atomic_thread_fence(std::memory_order_acquire);  // after whatever the last other holder read
  }
  return *state;
}

std::vector<StateTensor> CpuSessionState::tensors(std::int64_t position) const {
  const StateType cached = kv_type_ == KvType::float16 ? StateType::float16 : StateType::bfloat16;
  const std::vector<std::int64_t> kv_shape = {position, config_.num_key_value_heads, config_.head_dim};
  std::vector<StateTensor> all;
  for (std::size_t layer = 0; layer < gdn_.size(); ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    if (gdn_[layer] != nullptr) {
      all.push_back({prefix + ".recurrent_state", StateType::float32, recurrent_shape()});
      all.push_back({prefix + ".conv_state", StateType::float32, conv_shape()});
    } else {
      all.push_back({prefix + ".keys", cached, kv_shape});
      all.push_back({prefix + ".values", cached, kv_shape});
    }
  }
  return all;
}

void CpuSessionState::export_tensor(std::size_t index, std::span<std::byte> out) const {
  const std::size_t layer = index / kTensorsPerLayer;
  const bool second = index % kTensorsPerLayer != 0;
  if (gdn_[layer] != nullptr) {
    const auto& values = second ? gdn_[layer]->conv_state : gdn_[layer]->recurrent_state;
    std::memcpy(out.data(), values.data(), out.size());
    return;
  }
  const KvCache& cache = *kv_[layer];
  const std::size_t row = static_cast<std::size_t>(cache.head_dim()) * sizeof(std::uint16_t);
  std::byte* next = out.data();
  for (std::int64_t position = 0; position < position_; ++position) {
    for (std::int64_t head = 0; head < cache.heads(); ++head, next += row) {
      std::memcpy(next, second ? cache.value(position, head) : cache.key(position, head), row);
    }
  }
}

void CpuSessionState::begin_import(std::int64_t position) {
  reset();
  for (auto& cache : kv_) {
    if (cache) cache->prepare(0, position);
  }
  position_ = position;
}

void CpuSessionState::import_tensor(std::size_t index, std::span<const std::byte> values) {
  const std::size_t layer = index / kTensorsPerLayer;
  const bool second = index % kTensorsPerLayer != 0;
  if (gdn_[layer] != nullptr) {
    GdnState& state = gdn(static_cast<std::int64_t>(layer));
    std::memcpy((second ? state.conv_state : state.recurrent_state).data(), values.data(), values.size());
    return;
  }
  KvCache& cache = *kv_[layer];
  const std::size_t row = static_cast<std::size_t>(cache.head_dim()) * sizeof(std::uint16_t);
  const std::byte* next = values.data();
  for (std::int64_t position = 0; position < position_; ++position) {
    for (std::int64_t head = 0; head < cache.heads(); ++head, next += row) {
      std::memcpy(second ? cache.value(position, head) : cache.key(position, head), next, row);
    }
  }
}

}  // namespace lily::cpu
