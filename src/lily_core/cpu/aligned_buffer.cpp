// cpu/aligned_buffer.cpp -- allocation of working memory.
#include "cpu/aligned_buffer.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lily::cpu {
namespace {

constexpr std::size_t kLineBytes = 64;

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

#if defined(__linux__)

constexpr std::size_t kLargePageBytes = std::size_t{1} << 21;
constexpr std::size_t kSmallPageBytes = std::size_t{1} << 16;  // or a part of it, on every processor
// From here on memory is mapped. Sessions and models come and go, and malloc would keep their memory: it takes pieces
// of up to 32 MB from a heap that shrinks only at its end.
constexpr std::size_t kMappedBytes = std::size_t{1} << 18;

// Of the mapping of a piece: whole pages.
std::size_t mapped_bytes(std::size_t bytes) { return round_up(bytes, kSmallPageBytes); }

void* map(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

// Aligned to large pages; only whole ones are requested, so that the tail takes no more than it needs.
void* map_large(std::size_t bytes) {
  const std::size_t whole = mapped_bytes(bytes);
  auto* const first = static_cast<std::byte*>(map(whole + kLargePageBytes));
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(first) % kLargePageBytes;
  std::byte* const memory = first + before;
  if (before != 0) ::munmap(first, before);
  ::munmap(memory + whole, kLargePageBytes - before);
  // A refusal costs only speed.
  static_cast<void>(::madvise(memory, bytes / kLargePageBytes * kLargePageBytes, MADV_HUGEPAGE));
  return memory;
}

#endif

}  // namespace

void* allocate_aligned(std::size_t bytes) {
#if defined(__linux__)
  if (bytes >= kLargePageBytes) return map_large(bytes);
  if (bytes >= kMappedBytes) return map(mapped_bytes(bytes));
#endif
  void* memory = std::aligned_alloc(kLineBytes, round_up(bytes, kLineBytes));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void free_aligned(void* memory, std::size_t bytes) noexcept {
#if defined(__linux__)
  if (bytes >= kMappedBytes) {
    ::munmap(memory, mapped_bytes(bytes));
    return;
  }
#else
  static_cast<void>(bytes);
#endif
  std::free(memory);
}

}  // namespace lily::cpu
