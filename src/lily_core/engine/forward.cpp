// engine/forward.cpp -- hidden = hidden + mixer(norm(hidden)); hidden = hidden + moe(norm(hidden)), layer by layer.
#include "engine/forward.h"

namespace lily {

void run_layers(const ModelConfig& config, Backend& backend, SessionState& state, std::span<const std::int32_t> ids,
                std::int64_t first_needed_row, const BlockObserver& observe) {
  backend.begin_chunk(ids);
  if (observe) observe(0, BlockKind::embedding);
  const std::int64_t last = config.num_hidden_layers() - 1;
  for (std::int64_t layer = 0; layer <= last; ++layer) {
    const std::int64_t first = layer == last ? first_needed_row : 0;
    if (config.layer_types[static_cast<std::size_t>(layer)] == LayerType::linear_attention) {
      backend.gdn_block(layer, state, first);
    } else {
      backend.attention_block(layer, state, first);
    }
    if (observe) observe(layer, BlockKind::mixer);
    backend.moe_block(layer, first);
    if (observe) observe(layer, BlockKind::moe);
  }
  state.advance(static_cast<std::int64_t>(ids.size()));
}

}  // namespace lily
