// cpu/backend.h -- the CPU backend: every block of the model on SIMD kernels and a thread pool.
#pragma once

#include <memory>

#include "base/backend.h"
#include "base/engine_options.h"
#include "weights/weights.h"

namespace lily::cpu {

// Resolves the 0 and "" in options for the CPU (threads, prefill_chunk, cpu_isa). config and weights must
// outlive the backend.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const ModelConfig& config, const ModelWeights& weights,
                                                    EngineOptions& options);

}  // namespace lily::cpu
