// engine/forward.h -- the forward pass over layers, written once on top of Backend.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/backend.h"
#include "engine/config.h"

namespace lily {

enum class BlockKind : std::uint8_t { embedding, mixer, moe };
using BlockObserver = std::function<void(std::int64_t layer, BlockKind)>;

// Runs one chunk through all layers and advances the state. Rows below first_needed_row update the state but their
// final hidden states are not computed; ids.size() means that none is needed.
// `observe` is called behind every block.
void run_layers(const ModelConfig& config, Backend& backend, SessionState& state, std::span<const std::int32_t> ids,
                std::int64_t first_needed_row, const BlockObserver& observe = {});

}  // namespace lily
