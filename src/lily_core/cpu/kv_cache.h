// cpu/kv_cache.h -- keys and values of one attention layer, in blocks of positions that never move and may be shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/aligned_buffer.h"
#include "cpu/kernels.h"

namespace lily::cpu {

// A copy of a KvCache shares its blocks. Positions below a cache's length are never written again while another cache
// holds their block, so sharing needs no copy. Only the partly filled last block is copied, for the second cache that
// extends it: the first one appends in place, after the positions that the others see.
class KvCache {
 public:
  static constexpr std::int64_t kBlockPositions = 256;

  KvCache(std::int64_t num_key_value_heads, std::int64_t head_dim) : heads_(num_key_value_heads), head_dim_(head_dim) {}

  // Room for positions [0, end), of which [begin, end) may be written; what was at begin and beyond is lost.
  void prepare(std::int64_t begin, std::int64_t end);
  // Drops the blocks that hold no position below `count`.
  void truncate(std::int64_t count);
  // Drops the blocks that another cache holds.
  void release_shared();
  // [head_dim] of one position and head, in KvType.
  [[nodiscard]] std::uint16_t* key(std::int64_t position, std::int64_t head) { return slot(position, head); }
  [[nodiscard]] std::uint16_t* value(std::int64_t position, std::int64_t head) {
    return slot(position, head) + value_offset();
  }
  [[nodiscard]] const std::uint16_t* key(std::int64_t position, std::int64_t head) const {
    return slot(position, head);
  }
  [[nodiscard]] const std::uint16_t* value(std::int64_t position, std::int64_t head) const {
    return slot(position, head) + value_offset();
  }
  // Positions [0, count) of one head as spans, in order.
  void spans(std::int64_t head, std::int64_t count, std::vector<KvSpan>& out);
  [[nodiscard]] std::int64_t heads() const { return heads_; }
  [[nodiscard]] std::int64_t head_dim() const { return head_dim_; }

  // Calls visit(address, bytes, shared) for every block.
  template <class Visit>
  void visit_blocks(Visit&& visit) const {
    for (const auto& block : blocks_) {
      visit(static_cast<const void*>(block.get()),
            static_cast<std::size_t>(block->values.capacity()) * sizeof(std::uint16_t), block.use_count() > 1);
    }
  }

 private:
  struct Block {
    explicit Block(std::int64_t size) : values(size) {}
    AlignedBuffer<std::uint16_t> values;   // keys then values, [heads, kBlockPositions, head_dim]
    std::atomic<std::int64_t> written{0};  // positions that some cache has taken; the next one takes them from there
  };

  [[nodiscard]] std::int64_t value_offset() const { return heads_ * kBlockPositions * head_dim_; }
  [[nodiscard]] std::uint16_t* slot(std::int64_t position, std::int64_t head) const {
    std::uint16_t* block = blocks_[static_cast<std::size_t>(position / kBlockPositions)]->values.data();
    return block + (head * kBlockPositions + position % kBlockPositions) * head_dim_;
  }
  [[nodiscard]] std::shared_ptr<Block> new_block() const { return std::make_shared<Block>(2 * value_offset()); }
  void take(std::shared_ptr<Block>& block, std::int64_t begin, std::int64_t end) const;

  std::int64_t heads_;
  std::int64_t head_dim_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

}  // namespace lily::cpu
