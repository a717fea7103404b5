// device/msl/synchronization.h -- names that Metal's barriers, atomics and votes take.
#pragma once

#include "base.h"

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
LILY_FN constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}

enum memory_order { memory_order_relaxed = 0 };

template <class T>
struct atomic {
  T value;
};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;

struct simd_vote {
  ulong mask;
  LILY_FN explicit simd_vote(ulong lanes) : mask(lanes) {}
  LILY_FN explicit operator ulong() const { return mask; }
  LILY_FN bool any() const { return mask != 0; }
  LILY_FN bool all() const { return mask == 0xffffffffu; }
};

}  // namespace metal
