// cpu/aligned_buffer.h -- uninitialised working memory on a 64-byte boundary that only grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace lily::cpu {

template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::int64_t count) { reserve(count); }

  // Room for `count` elements; the contents are lost when it grows.
  void reserve(std::int64_t count) {
    if (count <= capacity_) return;
    const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
    data_.reset();
    capacity_ = 0;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
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
