// base/gpu_options.h -- a switch for every mechanism of the GPU engine, so that each can be measured by turning it off.
#pragma once

#include <cstdint>

namespace lily::gpu {

struct Options {
  // Prefill.
  bool dequantize_in_gemm = true;  // P1; off: a kernel writes the bf16 matrix, the GEMM reads it back
  bool route_on_device = true;     // P2; off: the CPU reads the chosen experts and groups the rows
  std::uint32_t tile_rows = 0;     // P3: rows of an expert's tile: 16, 32 or 64; 0: by the experts' load
  bool register_scan = true;       // P4; off: the recurrent state goes through memory in blocks of tokens

  // Decode.
  bool token_handoff = true;          // D2: the device picks the token, one step runs ahead; off: a round trip a token
  bool concurrent_stages = true;      // D3; off: a barrier after every kernel
  bool fuse_expert_inputs = true;     // D4a
  bool fuse_expert_outputs = true;    // D4b
  bool fuse_attention_inputs = true;  // D4c
  bool fuse_recurrent_norm = true;    // D4d
  bool coalesced_cache = true;        // D5
  bool pack_query_heads = true;       // D6
  bool blocked_attention = true;      // D7, from blocked_attention_threshold positions on
  std::int64_t blocked_attention_threshold = 32768;

  // Seconds on the device that one pass of a prompt should not exceed: chunks shrink to fit. 0: the device's own.
  double pass_seconds = 0.0;

  // Throws Error(config) naming the field that is out of range.
  void validate() const;
};

}  // namespace lily::gpu
