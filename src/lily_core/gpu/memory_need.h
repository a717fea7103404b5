// gpu/memory_need.h -- how much of a device's memory a model and one session need, before anything is loaded.
#pragma once

#include <cstdint>
#include <string>

#include "base/engine_options.h"
#include "device/device.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::gpu {

struct MemoryNeed {
  std::uint64_t weights = 0;          // files used in place, and copies of what is not aligned there
  std::uint64_t kv_cache = 0;         // at the full context
  std::uint64_t recurrent_state = 0;  // with logits and the slots of steps
  std::uint64_t scratch = 0;          // of a chunk of the prompt

  [[nodiscard]] std::uint64_t total() const { return weights + kv_cache + recurrent_state + scratch; }
};

// Plans on a device without memory, so that the figures are those of the engine itself. Options are resolved ones.
[[nodiscard]] MemoryNeed memory_need(const ModelConfig& config, const ModelWeights& weights,
                                     const EngineOptions& options, std::int64_t context);

// Makes sure that the model and a session of options.max_context tokens fit the device. With options.shorten_context
// the context becomes the longest that fits, if it is worth having. Else, and in all other cases, throws
// Error(memory_limit) naming the numbers and the remedies. A device that does not know its limit takes anything.
void fit_memory(const device::Device& device, const ModelConfig& config, const ModelWeights& weights,
                EngineOptions& options);

}  // namespace lily::gpu
