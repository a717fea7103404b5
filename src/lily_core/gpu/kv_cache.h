// gpu/kv_cache.h -- keys and values of all attention layers of one sequence on the device: they grow and are shared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/backend.h"
#include "device/device.h"
#include "gpu/pass.h"
#include "weights/config.h"

namespace lily::gpu {

// Positions below `written` belong to some cache that shares this buffer. A cache that ends there appends in place; any
// other copies.
struct CacheBuffers {
  std::vector<std::shared_ptr<device::Buffer>> keys, values;  // [attention layers] bf16 [kv_heads, capacity, head_dim]
  std::int64_t capacity = 0;                                  // positions
  std::atomic<std::int64_t> written{0};
};

// Memory to move before a pass can run, because a cache grew or was shared.
struct CacheCopy {
  View from, to;
};
struct CacheMove {
  std::vector<CacheCopy> copies;
  std::shared_ptr<CacheBuffers> from;
};

// Copies share their buffers. Layers count attention layers only.
class KvCache {
 public:
  KvCache(std::shared_ptr<device::Device> device, const ModelConfig& config, std::int64_t max_context);

  // Makes room for positions [begin, end), the next to be written. What is returned must be copied first.
  [[nodiscard]] CacheMove prepare(std::int64_t begin, std::int64_t end);
  // The copying failed: the buffers from which it should have copied are the cache's again.
  void take_back(const CacheMove& move) { buffers_ = move.from; }
  // Positions [begin, end) were prepared, and nobody will read them.
  void give_up(std::int64_t begin, std::int64_t end);
  // Back to no positions; keeps buffers that nobody shares.
  void reset();

  [[nodiscard]] std::int64_t capacity() const { return buffers_ == nullptr ? 0 : buffers_->capacity; }
  [[nodiscard]] View keys(std::size_t layer) const;
  [[nodiscard]] View values(std::size_t layer) const;
  void append_memory(std::vector<std::shared_ptr<device::Buffer>>& all) const;
  void visit_memory(const SessionState::MemoryVisitor& visit) const;

  // Positions [0, positions) of one layer's keys or values: bf16 [positions, kv_heads, head_dim].
  void read(std::size_t layer, bool values, std::int64_t positions, std::span<std::byte> out) const;
  void write(std::size_t layer, bool values, std::int64_t positions, std::span<const std::byte> rows);

 private:
  [[nodiscard]] std::shared_ptr<CacheBuffers> allocate(std::int64_t capacity) const;
  [[nodiscard]] std::int64_t grown_capacity(std::int64_t positions) const;
  void plan_copies(CacheMove& move, const CacheBuffers& to, std::int64_t positions) const;
  [[nodiscard]] device::Buffer& buffer(std::size_t layer, bool values) const;
  [[nodiscard]] std::uint64_t row_bytes() const { return static_cast<std::uint64_t>(head_dim_) * 2; }

  std::shared_ptr<device::Device> device_;
  std::uint64_t heads_;  // key/value heads
  std::int64_t head_dim_;
  std::int64_t layers_;
  std::int64_t max_context_;
  std::shared_ptr<CacheBuffers> buffers_;
};

}  // namespace lily::gpu
