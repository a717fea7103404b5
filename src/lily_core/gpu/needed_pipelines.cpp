// gpu/needed_pipelines.cpp -- records passes of every kind on a device that notes the pipelines they request.
#include "gpu/needed_pipelines.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include "gpu/decode_pass.h"
#include "gpu/null_device.h"
#include "gpu/planner.h"
#include "gpu/prefill_pass.h"
#include "gpu/session_state.h"

namespace lily::gpu {
namespace {

// The weights are those of the real device: a pass only names them.
class Recorder {
 public:
  Recorder(const ModelConfig& config, const DeviceWeights& weights, const EngineOptions& options, bool tensor_gemm)
      : config_(config), weights_(weights), options_(options) {
    device_->set_tensor_gemm(tensor_gemm);
  }

  void prompt(std::uint32_t rows) {
    Pass pass;
    Encoder encoder = encoder_of(pass);
    const StateViews views = views_at(0, rows);
    std::unique_ptr<HostRouting> host;
    if (!options_.gpu.route_on_device) host = std::make_unique<HostRouting>(*device_, rows, config_);
    const auto ids = device_->allocate(4ULL * rows, device::BufferStorage::shared, "prompt ids");
    const View hidden =
        encode_prefill(encoder, config_, weights_, views,
                       {.ids = whole(*ids), .rows = rows, .first_needed_row = rows - 1, .host = host.get()});
    encode_head(encoder, weights_, hidden, views.logits);
    encoder.copy_words(views.logits, views.logits);  // as a cache that grows
  }

  void step(std::int64_t position, const std::optional<DeviceChoice>& choice) {
    Pass pass;
    Encoder encoder = encoder_of(pass);
    encode_decode(encoder, config_, weights_, views_at(position, 1), choice);
  }

  [[nodiscard]] std::vector<device::PipelineRequest> requests() const { return device_->requests(); }

 private:
  Encoder encoder_of(Pass& pass) { return {*device_, pass, options_.gpu, static_cast<float>(config_.rms_norm_eps)}; }

  StateViews views_at(std::int64_t position, std::int64_t rows) {
    state_ = std::make_unique<GpuSessionState>(device_, config_, options_.max_context);
    static_cast<void>(state_->prepare(position, position + rows, 0));
    return state_->views(0, position);
  }

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const EngineOptions& options_;
  std::shared_ptr<NullDevice> device_ = std::make_shared<NullDevice>(NullContents::dropped);
  std::unique_ptr<GpuSessionState> state_;
};

// Tiles of dense products change with the rows, those of experts with the rows that an expert has on average.
std::vector<std::uint32_t> prompt_lengths(const ModelConfig& config, const EngineOptions& options) {
  const auto most = static_cast<std::uint32_t>(std::max<std::int64_t>(options.prefill_chunk, 1));
  std::vector<std::uint32_t> lengths;
  for (std::uint32_t rows = 1; rows < most; rows *= 2) lengths.push_back(rows);
  lengths.push_back(most);
  std::vector<std::uint32_t> chosen;
  std::vector<std::array<std::uint32_t, 2>> seen;
  for (const std::uint32_t rows : lengths) {
    const auto assignments = static_cast<std::uint32_t>(rows * config.num_experts_per_tok);
    const std::array<std::uint32_t, 2> tiles = {
        dense_tile_rows(rows),
        expert_tile_rows(options.gpu, assignments, static_cast<std::uint32_t>(config.num_experts))};
    if (std::ranges::find(seen, tiles) != seen.end()) continue;
    seen.push_back(tiles);
    chosen.push_back(rows);
  }
  return chosen;
}

}  // namespace

std::vector<device::PipelineRequest> needed_pipelines(const ModelConfig& config, const DeviceWeights& weights,
                                                      const EngineOptions& options, bool tensor_gemm) {
  Recorder recorder(config, weights, options, tensor_gemm);
  for (const std::uint32_t rows : prompt_lengths(config, options)) recorder.prompt(rows);
  std::vector<std::optional<DeviceChoice>> choices = {std::nullopt};
  if (options.gpu.token_handoff) {
    choices.emplace_back(DeviceChoice{.candidates = config.vocab_size});
    choices.emplace_back(DeviceChoice{.temperature = 1.0, .candidates = config.vocab_size});
  }
  // Blocked attention begins at some position.
  for (const auto& choice : choices) recorder.step(0, choice);
  recorder.step(options.max_context - 1, std::nullopt);
  return recorder.requests();
}

}  // namespace lily::gpu
