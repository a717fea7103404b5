// cpu/aligned_buffer.h -- uninitialised working memory on a 64-byte boundary that only grows; in large pages, where the
// system has them, if it is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <type_traits>

namespace lily::cpu {

// Uninitialised memory for std::free, on a 64-byte boundary or better.
[[nodiscard]] void* allocate_aligned(std::size_t bytes);

// The same memory for a std::vector.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class Other>
  AlignedAllocator(const AlignedAllocator<Other>&) {}  // NOLINT: as the requirements of allocators want it
  [[nodiscard]] T* allocate(std::size_t count) { return static_cast<T*>(allocate_aligned(count * sizeof(T))); }
  void deallocate(T* pointer, std::size_t) { std::free(pointer); }
  [[nodiscard]] bool operator==(const AlignedAllocator&) const { return true; }
};

template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t count) { reserve(count); }

  // Room for `count` elements; the contents are lost when it grows.
  void reserve(std::int64_t count) {
    if (count <= capacity_) return;
    data_.reset();
    capacity_ = 0;
    data_.reset(static_cast<T*>(allocate_aligned(static_cast<std::size_t>(count) * sizeof(T))));
    capacity_ = count;
  }

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(capacity_) * sizeof(T); }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace lily::cpu
