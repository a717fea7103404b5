// engine/forward.h -- the forward pass over layers, written once on top of Backend.
#pragma once

#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "engine/config.h"

namespace lily {

// Runs one chunk through all layers and advances the state. Rows below first_needed_row update the state but their
// final hidden states are not computed; ids.size() means that none is needed.
void run_layers(const ModelConfig& config, Backend& backend, SessionState& state, std::span<const std::int32_t> ids,
                std::int64_t first_needed_row);

}  // namespace lily
