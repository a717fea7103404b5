// cpu/kv_cache.h -- keys and values of one attention layer, in blocks of positions that never move.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/aligned_buffer.h"
#include "cpu/kernels.h"

namespace lily::cpu {

class KvCache {
 public:
  static constexpr std::int64_t kBlockPositions = 256;

  KvCache(std::int64_t num_key_value_heads, std::int64_t head_dim) : heads_(num_key_value_heads), head_dim_(head_dim) {}

  // Room for positions [0, count).
  void reserve(std::int64_t count);
  // [head_dim] of one position and head, in KvType.
  [[nodiscard]] std::uint16_t* key(std::int64_t position, std::int64_t head) { return slot(position, head); }
  [[nodiscard]] std::uint16_t* value(std::int64_t position, std::int64_t head) {
    return slot(position, head) + heads_ * kBlockPositions * head_dim_;
  }
  // Positions [0, count) of one head as spans, in order.
  void spans(std::int64_t head, std::int64_t count, std::vector<KvSpan>& out);
  [[nodiscard]] std::size_t bytes() const;

 private:
  [[nodiscard]] std::uint16_t* slot(std::int64_t position, std::int64_t head) {
    std::uint16_t* block = blocks_[static_cast<std::size_t>(position / kBlockPositions)].data();
    return block + (head * kBlockPositions + position % kBlockPositions) * head_dim_;
  }

  std::int64_t heads_;
  std::int64_t head_dim_;
  std::vector<AlignedBuffer<std::uint16_t>> blocks_;  // each: keys then values, [heads, kBlockPositions, head_dim]
};

}  // namespace lily::cpu
