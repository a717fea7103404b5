// cpu/aligned_buffer.h -- working memory on a 64-byte boundary, its values unspecified; it only grows. Large pieces are
// mapped one by one, so that they return to the system when freed, and lie in large pages if it has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace lily::cpu {

[[nodiscard]] void* allocate_aligned(std::size_t bytes);
// `bytes` as they were allocated.
void free_aligned(void* memory, std::size_t bytes) noexcept;

// The same memory for a std::vector.
template <class T>
struct AlignedAllocator {
  using value_type = T;
  AlignedAllocator() = default;
  template <class Other>
  AlignedAllocator(const AlignedAllocator<Other>&) {}  // NOLINT: as the requirements of allocators want it
  [[nodiscard]] T* allocate(std::size_t count) { return static_cast<T*>(allocate_aligned(count * sizeof(T))); }
  void deallocate(T* pointer, std::size_t count) { free_aligned(pointer, count * sizeof(T)); }
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
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T);
    data_ = {static_cast<T*>(allocate_aligned(bytes)), Free{bytes}};
    capacity_ = count;
  }

  [[nodiscard]] T* data() { return data_.get(); }
  [[nodiscard]] const T* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t capacity() const { return capacity_; }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(capacity_) * sizeof(T); }

 private:
  struct Free {
    std::size_t bytes = 0;
    void operator()(T* pointer) const { free_aligned(pointer, bytes); }
  };
  std::unique_ptr<T[], Free> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace lily::cpu
