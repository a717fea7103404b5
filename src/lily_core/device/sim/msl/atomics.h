// sim/msl/atomics.h -- relaxed atomics on int, uint and float in device and threadgroup memory.
#pragma once

#include "device/msl/math.h"
#include "device/msl/synchronization.h"

namespace metal {

// 32 bits of any of the three types, for the compiler's atomics.
template <class T>
LILY_FN uint* lily_word(const volatile atomic<T>* object) {
  static_assert(sizeof(atomic<T>) == 4, "atomics have 32 bits");
  return reinterpret_cast<uint*>(const_cast<atomic<T>*>(object));
}

template <class T>
LILY_FN T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  return lily_bit_cast<T>(__atomic_load_n(lily_word(object), __ATOMIC_RELAXED));
}
template <class T>
LILY_FN void atomic_store_explicit(volatile atomic<T>* object, lily_exact<T> value, memory_order) {
  __atomic_store_n(lily_word(object), lily_bit_cast<uint>(value), __ATOMIC_RELAXED);
}
template <class T>
LILY_FN bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected, lily_exact<T> desired,
                                                   memory_order, memory_order) {
  uint found = lily_bit_cast<uint>(*expected);
  const bool done = __atomic_compare_exchange_n(lily_word(object), &found, lily_bit_cast<uint>(desired), false,
                                                __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  *expected = lily_bit_cast<T>(found);
  return done;
}

template <class T, class Combine>
LILY_FN T lily_atomic_update(volatile atomic<T>* object, Combine combine) {
  T old = atomic_load_explicit(object, memory_order_relaxed);
  while (
      !atomic_compare_exchange_weak_explicit(object, &old, combine(old), memory_order_relaxed, memory_order_relaxed)) {
  }
  return old;
}
#define LILY_ATOMIC(name, expression)                                             \
  template <class T>                                                              \
  LILY_FN T name(volatile atomic<T>* object, lily_exact<T> value, memory_order) { \
    return lily_atomic_update(object, [=](T old) { return T(expression); });      \
  }
LILY_ATOMIC(atomic_fetch_add_explicit, old + value)
LILY_ATOMIC(atomic_fetch_sub_explicit, old - value)
LILY_ATOMIC(atomic_fetch_max_explicit, max(old, value))
LILY_ATOMIC(atomic_fetch_min_explicit, min(old, value))
LILY_ATOMIC(atomic_fetch_and_explicit, old& value)
LILY_ATOMIC(atomic_fetch_or_explicit, old | value)
LILY_ATOMIC(atomic_exchange_explicit, value)
#undef LILY_ATOMIC

}  // namespace metal
