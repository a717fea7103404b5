// gpu/step_report.h -- what a decode step or a prompt chunk of a model costs in kernels, stages and bytes; no weights
// needed.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/gpu_options.h"
#include "gpu/described_weights.h"
#include "gpu/planner.h"
#include "weights/config.h"

namespace lily::gpu {

struct StepReport {
  PassReport pass;
  std::map<std::string, std::uint64_t> kernels;  // launches by name
  std::uint64_t steps_in_flight = 1;             // decode: submitted before the host waits for the first
};

// A decode step at position `context`, its greedy choice included.
[[nodiscard]] StepReport report_decode(const ModelConfig& config, const DeclaredFormats& formats,
                                       const Options& options, std::int64_t context);
// A chunk of `rows` tokens behind `context` others, with the logits of its last.
[[nodiscard]] StepReport report_prefill(const ModelConfig& config, const DeclaredFormats& formats,
                                        const Options& options, std::int64_t context, std::int64_t rows);

}  // namespace lily::gpu
