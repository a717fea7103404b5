// gpu/step_report.cpp -- encodes and plans a pass on a device that computes nothing, and counts.
#include "gpu/step_report.h"

#include <memory>

#include "gpu/decode_pass.h"
#include "gpu/null_device.h"
#include "gpu/planner.h"
#include "gpu/prefill_pass.h"
#include "gpu/session_state.h"
#include "gpu/shapes.h"

namespace lily::gpu {
namespace {

// A model and a session without values.
class Subject {
 public:
  Subject(const ModelConfig& config, const DeclaredFormats& formats, const Options& options)
      : config_(config),
        options_(options),
        described_(config, formats),
        region_(described_.region()),
        weights_(*device_, config, described_.weights(), std::span(&region_, 1)),
        state_(device_, config, config.max_position_embeddings) {
    options_.validate();
  }

  template <class Encode>
  StepReport report(std::int64_t begin, std::int64_t rows, Encode&& encode) {
    static_cast<void>(state_.prepare(begin, begin + rows, 0));
    Pass pass;
    Encoder encoder(*device_, pass, options_, static_cast<float>(config_.rms_norm_eps));
    encode(encoder, state_.views(0, begin));
    Arena arena(*device_);
    const PlannedPass planned = plan_pass(pass, arena, options_.concurrent_stages);
    StepReport report;
    report.pass = planned.report;
    for (const Operation& operation : pass.operations()) {
      if (operation.pipeline != nullptr) ++report.kernels[operation.pipeline->name()];
    }
    return report;
  }

  [[nodiscard]] NullDevice& device() { return *device_; }
  [[nodiscard]] const DeviceWeights& weights() const { return weights_; }
  [[nodiscard]] const Options& options() const { return options_; }

 private:
  const ModelConfig& config_;
  Options options_;
  std::shared_ptr<NullDevice> device_ = std::make_shared<NullDevice>(NullContents::dropped);
  DescribedWeights described_;
  HostRegion region_;
  DeviceWeights weights_;
  GpuSessionState state_;
};

}  // namespace

StepReport report_decode(const ModelConfig& config, const DeclaredFormats& formats, const Options& options,
                         std::int64_t context) {
  require_shapes(config);
  Subject subject(config, formats, options);
  const DeviceChoice greedy{.candidates = config.vocab_size};
  StepReport report = subject.report(context, 1, [&](Encoder& encoder, const StateViews& views) {
    encode_decode(encoder, config, subject.weights(), views,
                  options.token_handoff ? std::optional(greedy) : std::nullopt);
  });
  report.steps_in_flight = options.token_handoff ? 2 : 1;
  return report;
}

StepReport report_prefill(const ModelConfig& config, const DeclaredFormats& formats, const Options& options,
                          std::int64_t context, std::int64_t rows) {
  require_shapes(config);
  Subject subject(config, formats, options);
  std::unique_ptr<HostRouting> host;
  const auto row_count = static_cast<std::uint32_t>(rows);
  if (!options.route_on_device) host = std::make_unique<HostRouting>(subject.device(), row_count, config);
  const auto ids = subject.device().allocate(4ULL * row_count, device::BufferStorage::shared, "prompt ids");
  return subject.report(context, rows, [&](Encoder& encoder, const StateViews& views) {
    const View hidden =
        encode_prefill(encoder, config, subject.weights(), views,
                       {.ids = whole(*ids), .rows = row_count, .first_needed_row = row_count - 1, .host = host.get()});
    encode_head(encoder, subject.weights(), hidden, views.logits);
  });
}

}  // namespace lily::gpu
