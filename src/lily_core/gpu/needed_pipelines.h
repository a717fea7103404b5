// gpu/needed_pipelines.h -- the pipelines that a model's passes need, known before the first pass.
#pragma once

#include <vector>

#include "base/engine_options.h"
#include "device/device.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

// Of prompts of any length, of decode steps at any position with any choice of the token, and of caches that grow;
// scoring asks for others. `options` is resolved, `tensor_gemm` the device's has_tensor_gemm().
[[nodiscard]] std::vector<device::PipelineRequest> needed_pipelines(const ModelConfig& config,
                                                                    const DeviceWeights& weights,
                                                                    const EngineOptions& options, bool tensor_gemm);

}  // namespace lily::gpu
