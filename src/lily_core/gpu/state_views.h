// gpu/state_views.h -- the memory of one sequence as a pass sees it: what a step reads, and the other copy it writes.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/pass.h"

namespace lily::gpu {

// State of one Gated DeltaNet layer, before and after the step: two different pieces of memory, so that a step that is
// given up (or fails) leaves the state before it whole.
struct GdnViews {
  View state, next_state;            // f32 [value_heads, value_dim, key_dim]
  View conv_state, next_conv_state;  // f32 [kernel_size - 1, conv_dim]
};

struct CacheViews {
  View keys, values;  // bf16 [kv_heads, capacity, head_dim]
};

struct StateViews {
  std::vector<GdnViews> gdn;                   // [layers], empty for attention layers
  std::vector<CacheViews> cache;               // [layers], empty for GDN layers
  std::uint32_t capacity = 0;                  // positions of the caches
  std::int64_t position = 0;                   // of the first row, as the host knows it
  View token, next_token;                      // int [1]: the step's input and the token chosen after it
  View device_position, next_device_position;  // int [1]
  View attention_position;                     // int [1]: of the first row that attends, prefill
  View logits;                                 // f32 [vocab_size], written
};

}  // namespace lily::gpu
