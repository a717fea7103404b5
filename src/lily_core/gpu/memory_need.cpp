// gpu/memory_need.cpp -- plans a model on a device that only counts, and compares with a limit.
#include "gpu/memory_need.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "gpu/null_device.h"
#include "gpu/planner.h"
#include "gpu/prefill_pass.h"
#include "gpu/session_state.h"
#include "gpu/weights.h"

namespace lily::gpu {
namespace {

constexpr std::int64_t kContextUnit = 256;    // tokens
constexpr std::int64_t kLeastContext = 4096;  // a shorter one is not chosen without being asked for
constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

std::string gibibytes(std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / kGibibyte);
  return text;
}

// A model whose weights are placed, but not copied, on a device that counts.
class Subject {
 public:
  Subject(const ModelConfig& config, const ModelWeights& weights, const EngineOptions& options)
      : config_(config), options_(options), weights_(*device_, config, weights, host_regions(weights)) {
    weight_bytes_ = device_->wrapped_bytes() + device_->allocated_bytes();
    const std::int64_t rows = std::min(options.prefill_chunk, config.max_position_embeddings);
    scratch_bytes_ = scratch_of_chunk(static_cast<std::uint32_t>(rows));
  }

  [[nodiscard]] MemoryNeed need(std::int64_t context) const {
    const std::uint64_t before = device_->allocated_bytes();
    GpuSessionState state(device_, config_, context);
    static_cast<void>(state.prepare(0, context, 0));
    const auto layers = std::count(config_.layer_types.begin(), config_.layer_types.end(), LayerType::full_attention);
    const auto kv_bytes =
        static_cast<std::uint64_t>(2 * layers * context * config_.num_key_value_heads * config_.head_dim * 2);
    return {.weights = weight_bytes_,
            .kv_cache = kv_bytes,
            .recurrent_state = device_->allocated_bytes() - before - kv_bytes,
            .scratch = scratch_bytes_};
  }

 private:
  std::uint64_t scratch_of_chunk(std::uint32_t rows) {
    GpuSessionState state(device_, config_, rows);
    static_cast<void>(state.prepare(0, rows, 0));
    Pass pass;
    Encoder encoder(*device_, pass, options_.gpu, static_cast<float>(config_.rms_norm_eps));
    std::unique_ptr<HostRouting> host;
    if (!options_.gpu.route_on_device) host = std::make_unique<HostRouting>(*device_, rows, config_);
    const auto ids = device_->allocate(4ULL * rows, device::BufferStorage::shared, "prompt ids");
    const StateViews views = state.views(0, 0);
    const View hidden =
        encode_prefill(encoder, config_, weights_, views,
                       {.ids = whole(*ids), .rows = rows, .first_needed_row = rows - 1, .host = host.get()});
    encode_head(encoder, weights_, hidden, views.logits);
    Arena arena(*device_);
    return plan_pass(pass, arena, options_.gpu.concurrent_stages).report.scratch_bytes + 4ULL * rows;
  }

  const ModelConfig& config_;
  const EngineOptions& options_;
  std::shared_ptr<NullDevice> device_ = std::make_shared<NullDevice>(NullContents::dropped);
  DeviceWeights weights_;
  std::uint64_t weight_bytes_ = 0;
  std::uint64_t scratch_bytes_ = 0;
};

// The longest context that fits, 0 when none does.
std::int64_t longest_context(const Subject& subject, std::int64_t at_most, std::uint64_t limit) {
  std::int64_t fits = 0;
  std::int64_t too_long = at_most / kContextUnit + 1;  // units
  while (fits + 1 < too_long) {
    const std::int64_t middle = fits + (too_long - fits) / 2;
    (subject.need(middle * kContextUnit).total() <= limit ? fits : too_long) = middle;
  }
  return fits * kContextUnit;
}

std::string refusal(const device::Device& device, const MemoryNeed& need, std::int64_t context, std::int64_t longest) {
  std::string text = "this model and a session of " + std::to_string(context) + " tokens need " +
                     gibibytes(need.total()) + " of the " + device.name() + " device, which should hold at most " +
                     gibibytes(device.memory_limit()) + ": weights " + gibibytes(need.weights) + ", KV cache " +
                     gibibytes(need.kv_cache) + ", recurrent state " + gibibytes(need.recurrent_state) + ", scratch " +
                     gibibytes(need.scratch);
  text += longest > 0 ? "; lower max_context (" + std::to_string(longest) + " fits) or prefill_chunk"
                      : "; the weights alone leave no room for a session";
  const std::string remedy = device.memory_limit_remedy(need.total());
  if (!remedy.empty()) text += ", or " + remedy;
  return text + ", or load it with backend=\"cpu\"";
}

}  // namespace

MemoryNeed memory_need(const ModelConfig& config, const ModelWeights& weights, const EngineOptions& options,
                       std::int64_t context) {
  return Subject(config, weights, options).need(context);
}

void fit_memory(const device::Device& device, const ModelConfig& config, const ModelWeights& weights,
                EngineOptions& options) {
  const std::uint64_t limit = device.memory_limit();
  if (limit == 0) return;
  const Subject subject(config, weights, options);
  const MemoryNeed need = subject.need(options.max_context);
  if (need.total() <= limit) return;
  const std::int64_t longest = longest_context(subject, options.max_context, limit);
  if (options.shorten_context && longest >= std::min(kLeastContext, options.max_context)) {
    options.max_context = longest;
    return;
  }
  throw Error(ErrorKind::memory_limit, refusal(device, need, options.max_context, longest));
}

}  // namespace lily::gpu
