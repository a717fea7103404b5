// cpu/kv_cache.cpp -- growth of the key/value cache by whole blocks.
#include "cpu/kv_cache.h"

#include <algorithm>

namespace lily::cpu {

void KvCache::reserve(std::int64_t count) {
  const auto wanted = static_cast<std::size_t>((count + kBlockPositions - 1) / kBlockPositions);
  while (blocks_.size() < wanted) blocks_.emplace_back(2 * heads_ * kBlockPositions * head_dim_);
}

void KvCache::spans(std::int64_t head, std::int64_t count, std::vector<KvSpan>& out) {
  out.clear();
  for (std::int64_t begin = 0; begin < count; begin += kBlockPositions) {
    out.push_back({key(begin, head), value(begin, head), std::min(kBlockPositions, count - begin)});
  }
}

std::size_t KvCache::bytes() const {
  std::size_t total = 0;
  for (const auto& block : blocks_) total += static_cast<std::size_t>(block.capacity()) * sizeof(std::uint16_t);
  return total;
}

}  // namespace lily::cpu
