// gpu/prefill_pass.h -- encodes one chunk of a prompt through all layers, on the device from end to end (P2).
#pragma once

#include <cstdint>

#include "gpu/encoder.h"
#include "gpu/row_groups.h"
#include "gpu/state_views.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

struct PrefillChunk {
  View ids;  // int [rows]
  std::uint32_t rows = 0;
  std::uint32_t first_needed_row = 0;  // the last layer need not finish the rows below; `rows`: none is needed
  const HostRouting* host = nullptr;   // P2 off
};

// Records the chunk at state.position; returns the residual rows from first_needed_row on, f32 [.., hidden_size].
View encode_prefill(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
                    const PrefillChunk& chunk);

// Logits of one residual row, f32 [vocab_size].
void encode_head(Encoder& encoder, const DeviceWeights& weights, const View& hidden_row, const View& logits);

}  // namespace lily::gpu
