// gpu/only_holder.h -- whether shared memory has one holder, who may then write it.
#pragma once

#include <atomic>
#include <memory>

namespace lily::gpu {

template <class T>
[[nodiscard]] bool is_only_holder(const std::shared_ptr<T>& pointer) {
  if (pointer.use_count() != 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // after whatever the last other holder read
  return true;
}

}  // namespace lily::gpu
