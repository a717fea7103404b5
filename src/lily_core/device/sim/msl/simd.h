// sim/msl/simd.h -- simdgroup operations: every lane deposits its value, the last to arrive works for all.
//
// Reductions use one butterfly tree, the same on every device, so that float sums agree to the bit. The operations
// take float, half, integers and vectors of them; bfloat has none in Metal.
#pragma once

#include "barrier.h"
#include "device/msl/math.h"

namespace metal {

template <class T>
constexpr bool lily_exchanges = !is_same_v<typename lily_shape<T>::element, bfloat>;

template <class T, class Combine>
LILY_FN T lily_reduce(T value, uint operation, Combine combine, const char* file, uint line) {
  static_assert(sizeof(T) <= 64, "simdgroup operation on too large a type");
  static_assert(lily_exchanges<T>, "simdgroup operations have no bfloat overload: convert to float");
  ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
  T* values = reinterpret_cast<T*>(group.exchange[group.parity]);
  T* result = reinterpret_cast<T*>(group.result[group.parity]);
  values[group.lane] = value;
  if (::lily_sim::arrive(group, operation, file, line)) {
    T sums[16];
    for (int i = 0; i < 16; i++) sums[i] = combine(values[i], values[i + 16]);
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; i++) sums[i] = combine(sums[i], sums[i + width]);
    }
    *result = sums[0];
    ::lily_sim::complete(group);
  }
  return *result;
}

#define LILY_REDUCTION(name, operation, expression)                                                       \
  template <class T>                                                                                      \
  LILY_FN T name(T value, LILY_SITE) {                                                                    \
    return lily_reduce(value, ::lily_sim::operation, [](T a, T b) { return T(expression); }, file, line); \
  }
LILY_REDUCTION(simd_sum, op_sum, a + b)
LILY_REDUCTION(simd_product, op_product, a* b)
LILY_REDUCTION(simd_max, op_max, max(a, b))
LILY_REDUCTION(simd_min, op_min, min(a, b))
LILY_REDUCTION(simd_and, op_and, a& b)
LILY_REDUCTION(simd_or, op_or, a | b)
LILY_REDUCTION(simd_xor, op_xor, a ^ b)
#undef LILY_REDUCTION

template <bool INCLUSIVE, class T>
LILY_FN T lily_prefix_sum(T value, const char* file, uint line) {
  static_assert(lily_exchanges<T>, "simdgroup operations have no bfloat overload: convert to float");
  ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
  const uint lane = group.lane;
  T* values = reinterpret_cast<T*>(group.exchange[group.parity]);
  values[lane] = value;
  if (::lily_sim::arrive(group, ::lily_sim::op_prefix, file, line)) {
    for (int distance = 1; distance < 32; distance *= 2) {
      T next[32];
      for (int i = 0; i < 32; i++) next[i] = i >= distance ? T(values[i] + values[i - distance]) : values[i];
      for (int i = 0; i < 32; i++) values[i] = next[i];
    }
    ::lily_sim::complete(group);
  }
  if (INCLUSIVE) return values[lane];
  return lane > 0 ? values[lane - 1] : T(0);
}
template <class T>
LILY_FN T simd_prefix_exclusive_sum(T value, LILY_SITE) {
  return lily_prefix_sum<false>(value, file, line);
}
template <class T>
LILY_FN T simd_prefix_inclusive_sum(T value, LILY_SITE) {
  return lily_prefix_sum<true>(value, file, line);
}

template <class T>
LILY_FN T lily_shuffle(T value, uint source, const char* file, uint line) {
  static_assert(lily_exchanges<T>, "simdgroup operations have no bfloat overload: shuffle the bits as ushort");
  ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
  T* values = reinterpret_cast<T*>(group.exchange[group.parity]);
  values[group.lane] = value;
  if (::lily_sim::arrive(group, ::lily_sim::op_shuffle, file, line)) ::lily_sim::complete(group);
  if (source > 31) ::lily_sim::fail("shuffle at %s:%u reads lane %u", ::lily_sim::base_name(file), line, source);
  return values[source];
}
template <class T>
LILY_FN T simd_shuffle(T value, ushort lane, LILY_SITE) {
  return lily_shuffle(value, lane, file, line);
}
template <class T>
LILY_FN T simd_broadcast(T value, ushort lane, LILY_SITE) {
  return lily_shuffle(value, lane, file, line);
}
template <class T>
LILY_FN T simd_broadcast_first(T value, LILY_SITE) {
  return lily_shuffle(value, 0, file, line);
}
template <class T>
LILY_FN T simd_shuffle_xor(T value, ushort mask, LILY_SITE) {
  return lily_shuffle(value, ::lily_sim::current_simdgroup->lane ^ mask, file, line);
}
// Lanes whose source does not exist keep their own value.
template <class T>
LILY_FN T simd_shuffle_down(T value, ushort delta, LILY_SITE) {
  const uint lane = ::lily_sim::current_simdgroup->lane;
  return lily_shuffle(value, lane + delta > 31 ? lane : lane + delta, file, line);
}
template <class T>
LILY_FN T simd_shuffle_up(T value, ushort delta, LILY_SITE) {
  const uint lane = ::lily_sim::current_simdgroup->lane;
  return lily_shuffle(value, lane < delta ? lane : lane - delta, file, line);
}

LILY_FN uint lily_ballot(bool vote, uint operation, const char* file, uint line) {
  const uint mask = vote ? 1u << ::lily_sim::current_simdgroup->lane : 0u;
  return lily_reduce(mask, operation, [](uint a, uint b) { return a | b; }, file, line);
}
LILY_FN simd_vote simd_ballot(bool vote, LILY_SITE) {
  return simd_vote(ulong(lily_ballot(vote, ::lily_sim::op_ballot, file, line)));
}
LILY_FN bool simd_any(bool vote, LILY_SITE) { return lily_ballot(vote, ::lily_sim::op_ballot, file, line) != 0; }
LILY_FN bool simd_all(bool vote, LILY_SITE) {
  return lily_ballot(vote, ::lily_sim::op_ballot, file, line) == 0xffffffffu;
}
LILY_FN bool simd_is_first() { return ::lily_sim::current_simdgroup->lane == 0; }

}  // namespace metal
