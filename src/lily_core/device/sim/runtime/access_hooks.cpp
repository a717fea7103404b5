// sim/runtime/access_hooks.cpp -- the functions that code compiled with -fsanitize=thread calls before every access.
//
// The sanitizer's own runtime is not linked: here a "thread" is a Metal thread, and barriers are Metal's.
#include <cstdint>
#include <cstring>

#include "runtime/access_check.h"

using lily_sim::check_access;

#define LILY_PLACE reinterpret_cast<std::uintptr_t>(__builtin_return_address(0))
#define LILY_ADDRESS(pointer) reinterpret_cast<std::uintptr_t>(pointer)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

#define LILY_HOOKS(kind, n)                                                                            \
  void __tsan_##kind##read##n(void* p) { check_access(LILY_ADDRESS(p), n, false, false, LILY_PLACE); } \
  void __tsan_##kind##write##n(void* p) { check_access(LILY_ADDRESS(p), n, true, false, LILY_PLACE); }
#define LILY_HOOKS_OF_KIND(kind) \
  LILY_HOOKS(kind, 1)            \
  LILY_HOOKS(kind, 2)            \
  LILY_HOOKS(kind, 4)            \
  LILY_HOOKS(kind, 8)            \
  LILY_HOOKS(kind, 16)
LILY_HOOKS_OF_KIND()
LILY_HOOKS_OF_KIND(unaligned_)
LILY_HOOKS_OF_KIND(volatile_)

#define LILY_READ_WRITE(n)                                      \
  void __tsan_read_write##n(void* p) {                          \
    check_access(LILY_ADDRESS(p), n, false, false, LILY_PLACE); \
    check_access(LILY_ADDRESS(p), n, true, false, LILY_PLACE);  \
  }
LILY_READ_WRITE(1)
LILY_READ_WRITE(2)
LILY_READ_WRITE(4)
LILY_READ_WRITE(8)
LILY_READ_WRITE(16)

void __tsan_read_range(void* p, unsigned long n) { check_access(LILY_ADDRESS(p), n, false, false, LILY_PLACE); }
void __tsan_write_range(void* p, unsigned long n) { check_access(LILY_ADDRESS(p), n, true, false, LILY_PLACE); }

void* __tsan_memcpy(void* to, const void* from, unsigned long n) {
  check_access(LILY_ADDRESS(from), n, false, false, LILY_PLACE);
  check_access(LILY_ADDRESS(to), n, true, false, LILY_PLACE);
  return std::memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, unsigned long n) {
  check_access(LILY_ADDRESS(from), n, false, false, LILY_PLACE);
  check_access(LILY_ADDRESS(to), n, true, false, LILY_PLACE);
  return std::memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, unsigned long n) {
  check_access(LILY_ADDRESS(to), n, true, false, LILY_PLACE);
  return std::memset(to, value, n);
}

using Word = unsigned int;

Word __tsan_atomic32_load(const volatile Word* p, int) {
  check_access(LILY_ADDRESS(p), 4, false, true, LILY_PLACE);
  return __atomic_load_n(p, __ATOMIC_RELAXED);
}
void __tsan_atomic32_store(volatile Word* p, Word value, int) {
  check_access(LILY_ADDRESS(p), 4, true, true, LILY_PLACE);
  __atomic_store_n(p, value, __ATOMIC_RELAXED);
}
int __tsan_atomic32_compare_exchange_strong(volatile Word* p, Word* expected, Word desired, int, int) {
  check_access(LILY_ADDRESS(p), 4, false, true, LILY_PLACE);
  check_access(LILY_ADDRESS(p), 4, true, true, LILY_PLACE);
  return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? 1 : 0;
}
int __tsan_atomic32_compare_exchange_weak(volatile Word* p, Word* expected, Word desired, int, int) {
  check_access(LILY_ADDRESS(p), 4, false, true, LILY_PLACE);
  check_access(LILY_ADDRESS(p), 4, true, true, LILY_PLACE);
  return __atomic_compare_exchange_n(p, expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ? 1 : 0;
}
Word __tsan_atomic32_compare_exchange_val(volatile Word* p, Word expected, Word desired, int, int) {
  check_access(LILY_ADDRESS(p), 4, false, true, LILY_PLACE);
  check_access(LILY_ADDRESS(p), 4, true, true, LILY_PLACE);
  __atomic_compare_exchange_n(p, &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}

}  // extern "C"
