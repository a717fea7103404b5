// cuda/msl/atomics.h -- relaxed atomics on int, uint and float in device and threadgroup memory.
#pragma once

#include "device/msl/math.h"
#include "device/msl/synchronization.h"

namespace metal {

template <class T>
LILY_FN T* lily_object(const volatile atomic<T>* object) {
  static_assert(sizeof(atomic<T>) == 4, "atomics have 32 bits");
  return &const_cast<atomic<T>*>(object)->value;
}

template <class T>
LILY_FN T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  return *static_cast<const volatile T*>(lily_object(object));
}
template <class T>
LILY_FN void atomic_store_explicit(volatile atomic<T>* object, lily_exact<T> value, memory_order) {
  *static_cast<volatile T*>(lily_object(object)) = value;
}
template <class T>
LILY_FN bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected, lily_exact<T> desired,
                                                   memory_order, memory_order) {
  const uint before = lily_bit_cast<uint>(*expected);
  const uint found = ::atomicCAS(reinterpret_cast<uint*>(lily_object(object)), before, lily_bit_cast<uint>(T(desired)));
  *expected = lily_bit_cast<T>(found);
  return found == before;
}

#define LILY_ATOMIC(name, function)                                               \
  template <class T>                                                              \
  LILY_FN T name(volatile atomic<T>* object, lily_exact<T> value, memory_order) { \
    return ::function(lily_object(object), T(value));                             \
  }
LILY_ATOMIC(atomic_fetch_add_explicit, atomicAdd)
LILY_ATOMIC(atomic_fetch_and_explicit, atomicAnd)
LILY_ATOMIC(atomic_fetch_or_explicit, atomicOr)
LILY_ATOMIC(atomic_exchange_explicit, atomicExch)
#undef LILY_ATOMIC

template <class T>
LILY_FN T atomic_fetch_sub_explicit(volatile atomic<T>* object, lily_exact<T> value, memory_order) {
  return ::atomicAdd(lily_object(object), T(0) - value);
}

// CUDA has no atomic minimum and maximum of floats.
#define LILY_ATOMIC_EXTREME(name, function, combine)                                                         \
  template <class T>                                                                                         \
  LILY_FN T name(volatile atomic<T>* object, lily_exact<T> value, memory_order) {                            \
    if constexpr (lily_is_integer<T>::value) {                                                               \
      return ::function(lily_object(object), T(value));                                                      \
    } else {                                                                                                 \
      T old = atomic_load_explicit(object, memory_order_relaxed);                                            \
      while (!atomic_compare_exchange_weak_explicit(object, &old, combine(old, value), memory_order_relaxed, \
                                                    memory_order_relaxed)) {                                 \
      }                                                                                                      \
      return old;                                                                                            \
    }                                                                                                        \
  }
LILY_ATOMIC_EXTREME(atomic_fetch_max_explicit, atomicMax, max)
LILY_ATOMIC_EXTREME(atomic_fetch_min_explicit, atomicMin, min)
#undef LILY_ATOMIC_EXTREME

}  // namespace metal
