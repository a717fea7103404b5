// device/cuda/launch_list.cpp -- resolves dispatches, and refuses those that a kernel cannot take.
#include "device/cuda/launch_list.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace lily::device::cuda {
namespace {

constexpr std::uint32_t kSimdWidth = 32;
constexpr std::uint32_t kLargestYZ = 65535;
constexpr std::uint32_t kThreadgroupMemory = 32768;

[[noreturn]] void refuse(const KernelEntry& entry, const std::string& reason) {
  throw Error(ErrorKind::backend, entry.name + ": " + reason);
}

void check_grid(const Dispatch& dispatch, const KernelEntry& entry) {
  const std::uint32_t threads = dispatch.threads_per_threadgroup;
  if (threads == 0 || threads % kSimdWidth != 0 || threads > entry.max_threads) {
    refuse(entry, "the threadgroup has " + std::to_string(threads) + " threads; the kernel allows multiples of 32 to " +
                      std::to_string(entry.max_threads));
  }
  const Size3 grid = dispatch.threadgroups;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) refuse(entry, "the grid is empty");
  if (grid.y > kLargestYZ || grid.z > kLargestYZ) {
    refuse(entry, "the grid has more than 65535 threadgroups in y or z; use x");
  }
  if (entry.takes_threadgroup_memory != (dispatch.threadgroup_bytes > 0)) {
    refuse(entry, entry.takes_threadgroup_memory ? "the kernel needs threadgroup memory, none is given"
                                                 : "the kernel takes no threadgroup memory as an argument");
  }
  if (dispatch.threadgroup_bytes > kThreadgroupMemory) {
    refuse(entry, std::to_string(dispatch.threadgroup_bytes) + " bytes of threadgroup memory; 32768 are allowed");
  }
}

// Slots mostly come in order: look where the last one was found first.
const BufferBinding& find_binding(const Dispatch& dispatch, const KernelEntry& entry, std::uint32_t slot,
                                  std::size_t& next) {
  const std::size_t count = dispatch.buffers.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (next + i) % count;
    if (dispatch.buffers[at].index != slot) continue;
    next = at + 1;
    const BufferBinding& binding = dispatch.buffers[at];
    if (binding.buffer == nullptr) break;
    const std::uint64_t size = binding.buffer->size();
    if (binding.offset > size || binding.size > size - binding.offset) {
      refuse(entry, "slot " + std::to_string(slot) + ": bytes " + std::to_string(binding.offset) + " to " +
                        std::to_string(binding.offset + binding.size) + " of '" + binding.buffer->label() +
                        "', which has only " + std::to_string(size));
    }
    return binding;
  }
  refuse(entry, "slot " + std::to_string(slot) + " is not bound");
}

void add_once(std::vector<CudaBuffer*>& buffers, CudaBuffer* buffer) {
  if (std::find(buffers.begin(), buffers.end(), buffer) == buffers.end()) buffers.push_back(buffer);
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace

bool operator==(const Launch& a, const Launch& b) {
  return a.function == b.function && a.grid.x == b.grid.x && a.grid.y == b.grid.y && a.grid.z == b.grid.z &&
         a.threads == b.threads && a.threadgroup_bytes == b.threadgroup_bytes && a.stage == b.stage;
}

LaunchList::LaunchList(std::span<const Stage> stages) {
  std::size_t count = 0;
  for (const Stage& stage : stages) count += stage.dispatches.size();
  launches_.reserve(count);
  values_.reserve(12 * count);
  for (const Stage& stage : stages) {
    for (const Dispatch& dispatch : stage.dispatches) add(dispatch, stages_);
    if (!stage.dispatches.empty()) ++stages_;
  }
  compute_hash();
}

void LaunchList::add(const Dispatch& dispatch, std::uint32_t stage) {
  if (dispatch.pipeline == nullptr) throw Error(ErrorKind::backend, "a dispatch without a pipeline");
  const auto& pipeline = static_cast<const CudaPipeline&>(*dispatch.pipeline);
  const KernelEntry& entry = pipeline.entry();
  check_grid(dispatch, entry);
  launches_.push_back({.pipeline = &pipeline,
                       .function = pipeline.function(),
                       .grid = dispatch.threadgroups,
                       .threads = dispatch.threads_per_threadgroup,
                       .threadgroup_bytes = dispatch.threadgroup_bytes,
                       .stage = stage,
                       .first_value = static_cast<std::uint32_t>(values_.size())});
  std::size_t next = 0;
  for (const KernelSlot& slot : entry.slots) {
    if (slot.bytes == 0) {
      const BufferBinding& binding = find_binding(dispatch, entry, slot.index, next);
      if (binding.written && !slot.written) refuse(entry, "declared as written, but the kernel's pointer is const");
      add_buffer(binding);
      continue;
    }
    if (dispatch.bytes_index != slot.index || dispatch.bytes.size() != slot.bytes) {
      refuse(entry, "an argument struct of " + std::to_string(slot.bytes) + " bytes belongs in slot " +
                        std::to_string(slot.index) + "; given: " + std::to_string(dispatch.bytes.size()) +
                        " bytes in slot " + std::to_string(dispatch.bytes_index));
    }
    add_arguments(dispatch.bytes);
  }
}

void LaunchList::add_buffer(const BufferBinding& binding) {
  auto* buffer = static_cast<CudaBuffer*>(binding.buffer);
  values_.push_back(buffer->address() + binding.offset);
  if (buffer->host_copy() == nullptr) return;
  add_once(shared_used_, buffer);
  if (binding.written) add_once(shared_written_, buffer);
}

void LaunchList::add_arguments(std::span<const std::byte> bytes) {
  const std::size_t first = values_.size();
  values_.resize(first + (bytes.size() + 7) / 8);
  std::memcpy(values_.data() + first, bytes.data(), bytes.size());
}

std::span<const std::uint64_t> LaunchList::values_of(std::size_t i) const {
  const std::size_t end = i + 1 < launches_.size() ? launches_[i + 1].first_value : values_.size();
  return std::span(values_).subspan(launches_[i].first_value, end - launches_[i].first_value);
}

void LaunchList::compute_hash() {
  for (const Launch& launch : launches_) {
    hash_ = mixed(hash_, reinterpret_cast<std::uintptr_t>(launch.function));
    hash_ = mixed(hash_, std::uint64_t{launch.grid.x} << 32 | launch.grid.y);
    hash_ = mixed(hash_, std::uint64_t{launch.stage} << 32 | launch.grid.z);
  }
  for (const std::uint64_t value : values_) hash_ = mixed(hash_, value);
}

bool LaunchList::has_shape_of(const LaunchList& other) const {
  return std::equal(launches_.begin(), launches_.end(), other.launches_.begin(), other.launches_.end(),
                    [](const Launch& a, const Launch& b) { return a.function == b.function && a.stage == b.stage; });
}

bool LaunchList::same_launch(std::size_t i, const LaunchList& other) const {
  const auto mine = values_of(i);
  const auto theirs = other.values_of(i);
  return launches_[i] == other.launches_[i] && std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end());
}

void** LaunchList::parameters(std::size_t i) {
  pointers_.clear();
  std::size_t at = launches_[i].first_value;
  for (const KernelSlot& slot : launches_[i].pipeline->entry().slots) {
    pointers_.push_back(values_.data() + at);
    at += slot.bytes == 0 ? 1 : (slot.bytes + 7) / 8;
  }
  return pointers_.data();
}

}  // namespace lily::device::cuda
