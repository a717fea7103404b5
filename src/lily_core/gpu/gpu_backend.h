// gpu/gpu_backend.h -- the model on a device: one planned pass for a prompt chunk, one for a decode step.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/backend.h"
#include "base/engine_options.h"
#include "base/gpu_options.h"
#include "device/device.h"
#include "gpu/decode_steps.h"
#include "gpu/pass_runner.h"
#include "gpu/row_groups.h"
#include "gpu/session_state.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

// Resolves the 0 and "" of options that concern the GPU. config and weights must outlive the backend.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::shared_ptr<device::Device> device, const ModelConfig& config,
                                                    const ModelWeights& weights, EngineOptions& options);

// A chunk is one pass with no wait inside; a decode step is one too, and two of them may be in flight.
class GpuBackend final : public Backend {
 public:
  GpuBackend(std::shared_ptr<device::Device> device, const ModelConfig& config, const ModelWeights& weights,
             const EngineOptions& options);

  [[nodiscard]] std::unique_ptr<SessionState> create_state() const override;
  [[nodiscard]] std::size_t scratch_bytes() const override;
  [[nodiscard]] bool reads_mapped_weights() const override { return !runner_.copies_wrapped(); }
  [[nodiscard]] std::int64_t max_chunk_rows() const override { return chunk_rows_.load(std::memory_order_relaxed); }
  void prefill(SessionState& state, std::span<const std::int32_t> ids, std::span<float> logits) override;
  void score(SessionState& state, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
             std::span<float> log_probabilities, std::span<std::int32_t> argmax) override;
  void step(std::span<StepRow> rows) override;
  [[nodiscard]] bool runs_ahead() const override { return runner_.options().token_handoff; }
  void begin_step(std::span<const StepRow> rows) override;
  void read_logits(const SessionState& state, std::span<float> logits) override;

  // Makes the device create every pipeline that prompts and steps will need, if that takes long.
  void compile_ahead(const EngineOptions& options);
  // From the next pass on; between two calls of the engine only. Weights and states stay.
  void set_options(const Options& options) { runner_.set_options(options); }
  [[nodiscard]] const CopiedWeights& copied_weights() const { return weights_.copied(); }
  [[nodiscard]] const BackendCounters& counters() { return runner_.counters(); }

 private:
  // What a chunk's pass leaves behind besides the state.
  enum class ChunkResult : std::uint8_t { state, logits, normalized_rows };
  void run_chunk(GpuSessionState& state, std::span<const std::int32_t> ids, ChunkResult result);
  void encode_result(Encoder& encoder, const StateViews& views, const View& hidden, std::uint32_t rows,
                     ChunkResult result);
  void score_block(std::size_t first, std::span<const std::int32_t> targets, std::span<float> log_probabilities,
                   std::span<std::int32_t> argmax);
  [[nodiscard]] const HostRouting* host_routing(std::uint32_t rows);
  void adapt_chunk(std::int64_t rows, double seconds);

  const ModelConfig& config_;
  std::int64_t max_context_;
  PassRunner runner_;
  DeviceWeights weights_;
  DecodeSteps steps_;

  // The chunk size that keeps a pass within its time.
  std::int64_t most_chunk_rows_;
  std::optional<double> pass_seconds_;
  bool measured_ = false;
  std::atomic<std::int64_t> chunk_rows_;

  std::shared_ptr<device::Buffer> ids_;           // int [rows]
  std::shared_ptr<device::Buffer> score_rows_;    // bf16 [rows, hidden_size], normalised
  std::shared_ptr<device::Buffer> score_logits_;  // f32 [kScoreRows, vocab_size]
  std::unique_ptr<HostRouting> host_routing_;
  std::uint32_t host_routing_rows_ = 0;
};

}  // namespace lily::gpu
