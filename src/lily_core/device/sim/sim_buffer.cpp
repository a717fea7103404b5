// device/sim/sim_buffer.cpp -- guarded allocations.
#include "device/sim/sim_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace lily::device::sim {
namespace {

constexpr std::uint64_t kAlignment = 16;

std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace

SimBuffer::SimBuffer(std::shared_ptr<KernelLibrary> library, std::shared_ptr<std::atomic<std::uint64_t>> allocated,
                     std::uint64_t size, BufferStorage storage, bool poison, std::string label)
    : library_(std::move(library)), allocated_(std::move(allocated)), label_(std::move(label)), storage_(storage) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t body = round_up(std::max<std::uint64_t>(size, 1), page);
  mapping_bytes_ = body + page;
  void* mapping = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    throw Error(ErrorKind::memory_limit,
                "no room for the buffer '" + label_ + "' of " + std::to_string(size) + " bytes");
  }
  mapping_ = mapping;
  auto* begin = static_cast<std::uint8_t*>(mapping);
  mprotect(begin + body, page, PROT_NONE);
  memory_ = {.base = begin + body - round_up(size, kAlignment),
             .size = size,
             .label = label_.c_str(),
             .poisoned = poison,
             .shadow = nullptr};
  if (poison) {
    for (std::uint64_t i = 0; i < size; ++i) {
      memory_.base[i] = static_cast<std::uint8_t>(i % 2 == 0 ? lily_sim::kPoison & 0xff : lily_sim::kPoison >> 8);
    }
  }
  *allocated_ += size;
}

SimBuffer::SimBuffer(std::shared_ptr<KernelLibrary> library, const std::byte* data, std::uint64_t size,
                     std::string label)
    : library_(std::move(library)), label_(std::move(label)) {
  // Kernels only read it: a dispatch that binds it as written is refused.
  auto* base = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(data));
  memory_ = {.base = base, .size = size, .label = label_.c_str(), .poisoned = false, .shadow = nullptr};
}

SimBuffer::~SimBuffer() {
  library_->api().release_memory(&memory_);
  if (mapping_ == nullptr) return;
  munmap(mapping_, mapping_bytes_);
  *allocated_ -= memory_.size;
}

std::byte* SimBuffer::contents() {
  return storage_ == BufferStorage::shared ? reinterpret_cast<std::byte*>(memory_.base) : nullptr;
}

void SimBuffer::read(std::uint64_t offset, std::span<std::byte> out) {
  std::memcpy(out.data(), memory_.base + offset, out.size());
}

void SimBuffer::write(std::uint64_t offset, std::span<const std::byte> values) {
  std::memcpy(memory_.base + offset, values.data(), values.size());
}

void SimBuffer::clear() { std::memset(memory_.base, 0, memory_.size); }

}  // namespace lily::device::sim
