// cpu/aligned_buffer.cpp -- allocation of working memory.
#include "cpu/aligned_buffer.h"

#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lily::cpu {
namespace {

constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kLargePageBytes = std::size_t{1} << 21;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void* allocate_aligned(std::size_t bytes) {
  const bool large = bytes >= kLargePageBytes;
  const std::size_t unit = large ? kLargePageBytes : kLineBytes;
  void* memory = std::aligned_alloc(unit, round_up(bytes, unit));
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Only whole large pages: the tail must not take more memory than it needs. Refusal costs speed only.
  if (large) static_cast<void>(::madvise(memory, bytes / kLargePageBytes * kLargePageBytes, MADV_HUGEPAGE));
#endif
  return memory;
}

}  // namespace lily::cpu
