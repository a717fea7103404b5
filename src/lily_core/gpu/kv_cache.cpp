// gpu/kv_cache.cpp -- allocation, growth and sharing of keys and values on the device.
#include "gpu/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gpu/only_holder.h"

namespace lily::gpu {
namespace {

constexpr std::int64_t kFirstCapacity = 256;  // positions

}  // namespace

KvCache::KvCache(std::shared_ptr<device::Device> device, const ModelConfig& config, std::int64_t max_context)
    : device_(std::move(device)),
      heads_(static_cast<std::uint64_t>(config.num_key_value_heads)),
      head_dim_(config.head_dim),
      layers_(std::count(config.layer_types.begin(), config.layer_types.end(), LayerType::full_attention)),
      max_context_(max_context) {}

std::shared_ptr<CacheBuffers> KvCache::allocate(std::int64_t capacity) const {
  auto cache = std::make_shared<CacheBuffers>();
  cache->capacity = capacity;
  const std::uint64_t bytes = heads_ * static_cast<std::uint64_t>(capacity) * row_bytes();
  for (std::int64_t i = 0; i < layers_; ++i) {
    cache->keys.push_back(device_->allocate(bytes, device::BufferStorage::private_, "keys " + std::to_string(i)));
    cache->values.push_back(device_->allocate(bytes, device::BufferStorage::private_, "values " + std::to_string(i)));
  }
  return cache;
}

std::int64_t KvCache::grown_capacity(std::int64_t positions) const {
  std::int64_t capacity = kFirstCapacity;
  while (capacity < positions) capacity *= 2;
  return std::min(capacity, std::max(max_context_, positions));
}

CacheMove KvCache::prepare(std::int64_t begin, std::int64_t end) {
  CacheMove move;
  if (buffers_ != nullptr && end <= buffers_->capacity) {
    if (is_only_holder(buffers_)) {
      buffers_->written.store(end, std::memory_order_relaxed);
      return move;
    }
    std::int64_t expected = begin;
    if (buffers_->written.compare_exchange_strong(expected, end, std::memory_order_acq_rel)) return move;
  }
  auto grown = allocate(grown_capacity(end));
  grown->written.store(end, std::memory_order_relaxed);
  if (buffers_ != nullptr && begin > 0) plan_copies(move, *grown, begin);
  buffers_ = std::move(grown);
  return move;
}

void KvCache::plan_copies(CacheMove& move, const CacheBuffers& to, std::int64_t positions) const {
  const std::uint64_t kept = static_cast<std::uint64_t>(positions) * row_bytes();
  const std::uint64_t old_stride = static_cast<std::uint64_t>(buffers_->capacity) * row_bytes();
  const std::uint64_t new_stride = static_cast<std::uint64_t>(to.capacity) * row_bytes();
  for (std::size_t layer = 0; layer < to.keys.size(); ++layer) {
    for (const auto field : {&CacheBuffers::keys, &CacheBuffers::values}) {
      const View from = whole(*((*buffers_).*field)[layer], MemoryKind::cache);
      const View target = whole(*(to.*field)[layer], MemoryKind::cache);
      for (std::uint64_t head = 0; head < heads_; ++head) {
        move.copies.push_back({from.part(head * old_stride, kept), target.part(head * new_stride, kept)});
      }
    }
  }
  move.from = buffers_;
}

void KvCache::give_up(std::int64_t begin, std::int64_t end) {
  std::int64_t expected = end;
  buffers_->written.compare_exchange_strong(expected, begin, std::memory_order_acq_rel);
}

void KvCache::reset() {
  if (buffers_ != nullptr && is_only_holder(buffers_)) {
    buffers_->written.store(0, std::memory_order_relaxed);
  } else {
    buffers_.reset();
  }
}

View KvCache::keys(std::size_t layer) const { return whole(*buffers_->keys[layer], MemoryKind::cache); }

View KvCache::values(std::size_t layer) const { return whole(*buffers_->values[layer], MemoryKind::cache); }

void KvCache::append_memory(std::vector<std::shared_ptr<device::Buffer>>& all) const {
  all.insert(all.end(), buffers_->keys.begin(), buffers_->keys.end());
  all.insert(all.end(), buffers_->values.begin(), buffers_->values.end());
}

void KvCache::visit_memory(const SessionState::MemoryVisitor& visit) const {
  if (buffers_ == nullptr) return;
  std::size_t bytes = 0;
  for (const auto& buffer : buffers_->keys) bytes += 2 * buffer->size();
  visit(buffers_.get(), bytes, buffers_.use_count() > 1);
}

device::Buffer& KvCache::buffer(std::size_t layer, bool values) const {
  return *(values ? buffers_->values : buffers_->keys)[layer];
}

void KvCache::read(std::size_t layer, bool values, std::int64_t positions, std::span<std::byte> out) const {
  const std::uint64_t row = row_bytes();
  const std::uint64_t head_stride = static_cast<std::uint64_t>(buffers_->capacity) * row;
  std::vector<std::byte> rows(static_cast<std::size_t>(positions) * row);
  for (std::uint64_t head = 0; head < heads_; ++head) {
    buffer(layer, values).read(head * head_stride, rows);
    for (std::uint64_t position = 0; position < static_cast<std::uint64_t>(positions); ++position) {
      std::memcpy(out.data() + (position * heads_ + head) * row, rows.data() + position * row, row);
    }
  }
}

void KvCache::write(std::size_t layer, bool values, std::int64_t positions, std::span<const std::byte> rows) {
  const std::uint64_t row = row_bytes();
  const std::uint64_t head_stride = static_cast<std::uint64_t>(buffers_->capacity) * row;
  std::vector<std::byte> of_head(static_cast<std::size_t>(positions) * row);
  for (std::uint64_t head = 0; head < heads_; ++head) {
    for (std::uint64_t position = 0; position < static_cast<std::uint64_t>(positions); ++position) {
      std::memcpy(of_head.data() + position * row, rows.data() + (position * heads_ + head) * row, row);
    }
    buffer(layer, values).write(head * head_stride, of_head);
  }
}

}  // namespace lily::gpu
