// gpu/arena.cpp -- lifetimes of scratch memory in stages, and their placement: largest first, at the lowest free
// offset.
#include "gpu/arena.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace lily::gpu {
namespace {

constexpr std::uint64_t kAlignment = 256;

struct Lifetime {
  std::uint32_t first = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t last = 0;

  [[nodiscard]] bool used() const { return first <= last; }
  [[nodiscard]] bool overlaps(const Lifetime& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Lifetime> find_lifetimes(const Pass& pass, std::span<const std::uint32_t> stage_of) {
  std::vector<Lifetime> lifetimes(pass.scratch_sizes().size());
  const auto operations = pass.operations();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    for (const Operand& operand : operations[i].operands) {
      if (operand.view.buffer != nullptr) continue;
      Lifetime& lifetime = lifetimes[operand.view.scratch];
      lifetime.first = std::min(lifetime.first, stage_of[i]);
      lifetime.last = std::max(lifetime.last, stage_of[i]);
    }
  }
  return lifetimes;
}

}  // namespace

ScratchLayout layout_scratch(const Pass& pass, std::span<const std::uint32_t> stage_of) {
  const std::vector<Lifetime> lifetimes = find_lifetimes(pass, stage_of);
  const auto sizes = pass.scratch_sizes();
  const auto rounded = [&](std::uint32_t piece) { return (sizes[piece] + kAlignment - 1) / kAlignment * kAlignment; };
  ScratchLayout layout;
  layout.offsets.assign(sizes.size(), 0);
  std::vector<std::uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0U);
  std::erase_if(order, [&](std::uint32_t piece) { return !lifetimes[piece].used(); });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t left, std::uint32_t right) { return sizes[left] > sizes[right]; });
  std::vector<std::uint32_t> placed;  // by offset
  for (const std::uint32_t piece : order) {
    std::uint64_t offset = 0;
    for (const std::uint32_t other : placed) {
      if (!lifetimes[piece].overlaps(lifetimes[other])) continue;
      if (offset + rounded(piece) <= layout.offsets[other]) break;
      offset = std::max(offset, layout.offsets[other] + rounded(other));
    }
    layout.offsets[piece] = offset;
    layout.bytes = std::max(layout.bytes, offset + rounded(piece));
    layout.bytes_unshared += rounded(piece);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), offset,
                         [&](std::uint64_t value, std::uint32_t other) { return value < layout.offsets[other]; }),
        piece);
  }
  return layout;
}

std::shared_ptr<device::Buffer> Arena::reserve(std::uint64_t bytes) {
  if (buffer_ == nullptr || buffer_->size() < bytes) {
    buffer_.reset();  // first, so that the device need not hold both
    buffer_ = device_.allocate(bytes, device::BufferStorage::private_, "scratch");
  }
  return buffer_;
}

}  // namespace lily::gpu
