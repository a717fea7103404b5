// cpu/cpu_backend.h -- the loop over layers on the CPU: every block of the model on SIMD kernels and a thread pool.
#pragma once

#include <memory>
#include <span>

#include "base/backend.h"
#include "cpu/attention_block.h"
#include "cpu/chunk.h"
#include "cpu/compute.h"
#include "cpu/gdn_block.h"
#include "cpu/moe_block.h"
#include "cpu/session_state.h"
#include "weights/weights.h"

namespace lily::cpu {

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels, std::int64_t threads,
             std::int64_t max_chunk_rows, KvType kv_type);

  [[nodiscard]] std::unique_ptr<SessionState> create_state() const override;
  [[nodiscard]] std::size_t scratch_bytes() const override;
  [[nodiscard]] std::int64_t max_chunk_rows() const override { return max_chunk_rows_; }
  void prefill(SessionState& state, std::span<const std::int32_t> ids, std::span<float> logits) override;
  [[nodiscard]] bool trace(SessionState& state, std::span<const std::int32_t> ids,
                           const BlockObserver& observe) override;
  void score(SessionState& state, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
             std::span<float> log_probabilities, std::span<std::int32_t> argmax) override;
  // A row is a prompt of one token, with the same bits.
  void step(std::span<StepRow> rows) override;

 private:
  // All layers. The last one computes only rows from first_needed_row on; none if that is the number of ids.
  void run_layers(CpuSessionState& state, std::span<const std::int32_t> ids, std::int64_t first_needed_row,
                  const BlockObserver& observe = {});

  const ModelConfig& config_;
  const ModelWeights& weights_;
  std::int64_t max_chunk_rows_;
  KvType kv_type_;
  Compute compute_;
  Chunk chunk_;
  GdnBlock gdn_block_;
  AttentionBlock attention_block_;
  MoeBlock moe_block_;
};

}  // namespace lily::cpu
