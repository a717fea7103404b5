// cpu/kv_cache.cpp -- growth of the key/value cache by whole blocks, and the copy of a shared one.
#include "cpu/kv_cache.h"

#include <algorithm>
#include <utility>

namespace lily::cpu {
namespace {

// Whether this is the only holder; if so, everything that earlier holders did is visible.
template <class T>
bool is_only_holder(const std::shared_ptr<T>& pointer) {
  if (pointer.use_count() != 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return true;
}

}  // namespace

// Makes positions [begin, end) of a block writable, those before begin kept.
void KvCache::take(std::shared_ptr<Block>& block, std::int64_t begin, std::int64_t end) const {
  if (is_only_holder(block)) {
    block->written.store(end, std::memory_order_relaxed);
    return;
  }
  std::int64_t expected = begin;
  if (block->written.compare_exchange_strong(expected, end, std::memory_order_acq_rel)) return;
  auto copy = new_block();
  const std::int64_t row = kBlockPositions * head_dim_;
  for (std::int64_t head = 0; head < 2 * heads_; ++head) {
    std::copy_n(block->values.data() + head * row, begin * head_dim_, copy->values.data() + head * row);
  }
  copy->written.store(end, std::memory_order_relaxed);
  block = std::move(copy);
}

void KvCache::prepare(std::int64_t begin, std::int64_t end) {
  const auto wanted = static_cast<std::size_t>((end + kBlockPositions - 1) / kBlockPositions);
  while (blocks_.size() < wanted) blocks_.push_back(new_block());
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t first = position / kBlockPositions * kBlockPositions;
    const std::int64_t next = std::min(first + kBlockPositions, end);
    take(blocks_[static_cast<std::size_t>(position / kBlockPositions)], position - first, next - first);
    position = next;
  }
}

void KvCache::truncate(std::int64_t count) {
  const auto kept = static_cast<std::size_t>((count + kBlockPositions - 1) / kBlockPositions);
  if (kept < blocks_.size()) blocks_.resize(kept);
}

void KvCache::release_shared() {
  std::erase_if(blocks_, [](const auto& block) { return !is_only_holder(block); });
}

void KvCache::spans(std::int64_t head, std::int64_t count, std::vector<KvSpan>& out) {
  out.clear();
  for (std::int64_t begin = 0; begin < count; begin += kBlockPositions) {
    out.push_back({key(begin, head), value(begin, head), std::min(kBlockPositions, count - begin)});
  }
}

}  // namespace lily::cpu
