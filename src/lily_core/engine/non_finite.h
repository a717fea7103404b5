// engine/non_finite.h -- finds the first value of a sequence that is NaN or infinite, once its logits are.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "base/backend.h"
#include "base/finite.h"
#include "weights/config.h"

namespace lily {

// Computes `ids` once more from the empty state and looks at every row after every block. Says where values are first
// not finite ("position 3, layers.2.mlp"); nothing where they all are, where the backend does not show its rows, or
// after `stop`. The mutex is held for each chunk.
[[nodiscard]] std::optional<std::string> find_non_finite(const ModelConfig& config, Backend& backend, std::mutex& mutex,
                                                         std::span<const std::int32_t> ids,
                                                         const std::atomic<bool>& stop);
// The first tensor of a state that holds such a value, and for keys and values the position.
[[nodiscard]] std::optional<std::string> find_non_finite(const SessionState& state);

}  // namespace lily
