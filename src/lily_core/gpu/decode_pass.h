// gpu/decode_pass.h -- encodes one decode step: one token through the whole model, and the choice of the next.
#pragma once

#include <cstdint>
#include <optional>

#include "base/backend.h"
#include "gpu/encoder.h"
#include "gpu/state_views.h"
#include "gpu/weights.h"
#include "weights/config.h"

namespace lily::gpu {

// Parts of the context that decode attention splits into, at a position; a step's passes differ between positions only
// in this.
struct AttentionSplit {
  bool blocked = false;  // D7
  std::uint32_t splits = 1;
  friend bool operator==(const AttentionSplit&, const AttentionSplit&) = default;
};
[[nodiscard]] AttentionSplit attention_split(const ModelConfig& config, const Options& options, std::int64_t position);

// Records a step at state.position. With a choice, the device picks the next token into state.next_token.
void encode_decode(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
                   const std::optional<DeviceChoice>& choice);

}  // namespace lily::gpu
