// cpu/workspace.h -- one piece of memory that the blocks of a layer use one after another: each block's arrays overlay
// those of the block before.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "cpu/aligned_buffer.h"

namespace lily::cpu {

class Workspace {
 public:
  struct Array {
    float** data;
    std::int64_t count;
  };

  // Points every array at room for its floats, on a 64-byte boundary. What earlier calls handed out is lost.
  void divide(std::initializer_list<Array> arrays) {
    std::int64_t total = 0;
    for (const Array& array : arrays) total += padded(array.count);
    memory_.reserve(total);
    float* next = memory_.data();
    for (const Array& array : arrays) {
      *array.data = next;
      next += padded(array.count);
    }
  }

  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  static std::int64_t padded(std::int64_t count) { return (count + 15) / 16 * 16; }

  AlignedBuffer<float> memory_;
};

}  // namespace lily::cpu
