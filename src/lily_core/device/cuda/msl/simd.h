// cuda/msl/simd.h -- simdgroup operations as warp shuffles. A simdgroup is a warp, and all its lanes take part.
//
// Reductions use one butterfly tree, the same on every device, so that float sums agree to the bit. The operations
// take float, half, integers and vectors of them; bfloat has none in Metal.
#pragma once

#include "device/msl/math.h"
#include "device/msl/synchronization.h"

namespace metal {

constexpr uint kAllLanes = 0xffffffffu;

template <class T>
constexpr bool lily_exchanges = !is_same_v<typename lily_shape<T>::element, bfloat>;

LILY_FN uint lily_lane() { return threadIdx.x & 31u; }

// Applies an exchange of 32-bit words to a value of any size.
template <class T, class Exchange>
LILY_FN T lily_exchange(T value, Exchange exchange) {
  static_assert(lily_exchanges<T>, "simdgroup operations have no bfloat overload: shuffle the bits as ushort");
  constexpr int words = static_cast<int>((sizeof(T) + 3) / 4);
  uint bits[words] = {};
  LILY_MEMCPY(bits, &value, sizeof(T));
  for (int i = 0; i < words; i++) bits[i] = exchange(bits[i]);
  LILY_MEMCPY(&value, bits, sizeof(T));
  return value;
}

template <class T>
LILY_FN T simd_shuffle(T value, ushort lane) {
  return lily_exchange(value, [=](uint word) { return __shfl_sync(kAllLanes, word, lane); });
}
template <class T>
LILY_FN T simd_broadcast(T value, ushort lane) {
  return simd_shuffle(value, lane);
}
template <class T>
LILY_FN T simd_broadcast_first(T value) {
  return simd_shuffle(value, ushort(0));
}
template <class T>
LILY_FN T simd_shuffle_xor(T value, ushort mask) {
  return lily_exchange(value, [=](uint word) { return __shfl_xor_sync(kAllLanes, word, mask); });
}
// Lanes whose source does not exist keep their own value.
template <class T>
LILY_FN T simd_shuffle_down(T value, ushort delta) {
  return lily_exchange(value, [=](uint word) { return __shfl_down_sync(kAllLanes, word, delta); });
}
template <class T>
LILY_FN T simd_shuffle_up(T value, ushort delta) {
  return lily_exchange(value, [=](uint word) { return __shfl_up_sync(kAllLanes, word, delta); });
}

#define LILY_REDUCTION(name, expression)                          \
  template <class T>                                              \
  LILY_FN T name(T a) {                                           \
    for (int mask = 16; mask > 0; mask >>= 1) {                   \
      const T b = simd_shuffle_xor(a, static_cast<ushort>(mask)); \
      a = T(expression);                                          \
    }                                                             \
    return a;                                                     \
  }
LILY_REDUCTION(simd_sum, a + b)
LILY_REDUCTION(simd_product, a* b)
LILY_REDUCTION(simd_max, max(a, b))
LILY_REDUCTION(simd_min, min(a, b))
LILY_REDUCTION(simd_and, a& b)
LILY_REDUCTION(simd_or, a | b)
LILY_REDUCTION(simd_xor, a ^ b)
#undef LILY_REDUCTION

// 32-bit integers have instructions of their own.
#define LILY_INTEGER_REDUCTION(T)                                             \
  LILY_FN T simd_sum(T value) { return __reduce_add_sync(kAllLanes, value); } \
  LILY_FN T simd_max(T value) { return __reduce_max_sync(kAllLanes, value); } \
  LILY_FN T simd_min(T value) { return __reduce_min_sync(kAllLanes, value); }
LILY_INTEGER_REDUCTION(int)
LILY_INTEGER_REDUCTION(uint)
#undef LILY_INTEGER_REDUCTION
LILY_FN uint simd_and(uint value) { return __reduce_and_sync(kAllLanes, value); }
LILY_FN uint simd_or(uint value) { return __reduce_or_sync(kAllLanes, value); }
LILY_FN uint simd_xor(uint value) { return __reduce_xor_sync(kAllLanes, value); }

template <class T>
LILY_FN T simd_prefix_inclusive_sum(T value) {
  const uint lane = lily_lane();
  for (uint distance = 1; distance < 32; distance *= 2) {
    const T before = simd_shuffle_up(value, static_cast<ushort>(distance));
    if (lane >= distance) value = T(value + before);
  }
  return value;
}
template <class T>
LILY_FN T simd_prefix_exclusive_sum(T value) {
  const T before = simd_shuffle_up(simd_prefix_inclusive_sum(value), ushort(1));
  return lily_lane() > 0 ? before : T(0);
}

LILY_FN simd_vote simd_ballot(bool vote) { return simd_vote(static_cast<ulong>(__ballot_sync(kAllLanes, vote))); }
LILY_FN bool simd_any(bool vote) { return __any_sync(kAllLanes, vote) != 0; }
LILY_FN bool simd_all(bool vote) { return __all_sync(kAllLanes, vote) != 0; }
LILY_FN bool simd_is_first() { return lily_lane() == 0; }

}  // namespace metal
