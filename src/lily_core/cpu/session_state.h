// cpu/session_state.h -- the state of one sequence in host memory: KV caches, recurrent states, convolution windows.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/backend.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kv_cache.h"
#include "weights/config.h"

namespace lily::cpu {

struct GdnState {
  using Values = std::vector<float, AlignedAllocator<float>>;
  Values recurrent_state;  // [linear_num_value_heads, linear_value_head_dim, linear_key_head_dim]
  Values conv_state;       // [linear_conv_kernel_dim - 1, linear_conv_dim], oldest first
};

// Copies share everything: a GDN layer's state is copied when the first of its holders computes, KV blocks as KvCache
// says.
class CpuSessionState final : public SessionState {
 public:
  CpuSessionState(const ModelConfig& config, KvType kv_type);
  void reset() override;
  [[nodiscard]] std::unique_ptr<SessionState> clone() const override;
  void visit_memory(const MemoryVisitor& visit) const override;
  [[nodiscard]] std::vector<StateTensor> tensors(std::int64_t position) const override;
  void export_tensor(std::size_t index, std::span<std::byte> out) const override;
  void begin_import(std::int64_t position) override;
  void import_tensor(std::size_t index, std::span<const std::byte> values) override;

  // For writing.
  [[nodiscard]] GdnState& gdn(std::int64_t layer);
  [[nodiscard]] KvCache& kv_cache(std::int64_t layer) { return *kv_[static_cast<std::size_t>(layer)]; }

 private:
  [[nodiscard]] std::vector<std::int64_t> recurrent_shape() const;
  [[nodiscard]] std::vector<std::int64_t> conv_shape() const;
  [[nodiscard]] std::shared_ptr<GdnState> empty_gdn_state() const;

  ModelConfig config_;
  KvType kv_type_;
  std::vector<std::shared_ptr<GdnState>> gdn_;  // [num_hidden_layers], null for attention layers
  std::vector<std::optional<KvCache>> kv_;      // [num_hidden_layers], nothing for GDN layers
};

}  // namespace lily::cpu
