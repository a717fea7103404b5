// cpu/attention_block.h -- gated grouped-query attention with partial rotary positions.
#pragma once

#include <vector>

#include "cpu/chunk.h"
#include "cpu/compute.h"
#include "cpu/kv_cache.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::cpu {

class AttentionBlock {
 public:
  AttentionBlock(const ModelConfig& config, Compute& compute, KvType kv_type);

  // hidden += mixer(norm(hidden)) for a chunk that begins at `position`. Every row enters the cache; residual rows
  // below first_needed_row are unchanged.
  void run(const LayerWeights& weights, KvCache& cache, std::int64_t position, Chunk& chunk,
           std::int64_t first_needed_row);

 private:
  // Of one chunk, in its workspace.
  struct Arrays {
    float* query = nullptr;   // [needed rows, num_attention_heads, 2, head_dim]: query, gate
    float* key = nullptr;     // [rows, num_key_value_heads, head_dim]
    float* value = nullptr;   // [rows, num_key_value_heads, head_dim]
    float* mixed = nullptr;   // [needed rows, num_attention_heads * head_dim]
    float* cosine = nullptr;  // [rows, rotary_dim / 2]
    float* sine = nullptr;    // [rows, rotary_dim / 2]
    std::int64_t rows = 0;
    std::int64_t first_needed_row = 0;
    std::int64_t position = 0;  // of the first row
  };

  // Query heads [head_begin, head_end), which share a key/value head, of the chunk's rows [row_begin, row_end).
  struct Task {
    std::int64_t head_begin;
    std::int64_t head_end;
    std::int64_t row_begin;
    std::int64_t row_end;
  };

  [[nodiscard]] Arrays allocate(Chunk& chunk, std::int64_t position, std::int64_t first_needed_row) const;
  void project(const LayerWeights& weights, const Arrays& arrays, Chunk& chunk);
  void compute_rotations(const Arrays& arrays);
  void prepare_query_key_value(const AttentionWeights& attention, KvCache& cache, const Arrays& arrays,
                               std::int64_t row) const;
  void attend_all(KvCache& cache, const Arrays& arrays);
  void attend(KvCache& cache, const Arrays& arrays, const Task& task, std::int64_t worker) const;

  const ModelConfig& config_;
  Compute& compute_;
  KvType kv_type_;
  std::vector<double> rope_frequency_;  // [rotary_dim / 2] radians per position
};

}  // namespace lily::cpu
