// cpu/amx_permission.cpp -- asks processor and system for AMX.
#include "cpu/amx_permission.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace lily::cpu {

#if defined(__x86_64__) && defined(__linux__)

namespace {

// CPUID leaf 7: AMX-TILE and AMX-INT8.
bool processor_has_amx() {
  constexpr unsigned tile = 1U << 24U;
  constexpr unsigned int8 = 1U << 25U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & tile) != 0 && (d & int8) != 0;
}

// Whether the system saves the tiles' configuration and data when it switches threads.
bool system_saves_tiles() {
  constexpr unsigned osxsave = 1U << 27U;
  constexpr std::uint32_t tiles = 3U << 17U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & osxsave) == 0) return false;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & tiles) == tiles;
}

}  // namespace

bool request_amx() {
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long tile_data = 18;               // XFEATURE_XTILEDATA
  return processor_has_amx() && system_saves_tiles() && ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#else

bool request_amx() { return false; }

#endif

}  // namespace lily::cpu
