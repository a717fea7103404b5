// gpu/pass.h -- a pass while it is recorded: kernels in program order, with the memory that each reads and writes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"

namespace lily::gpu {

enum class MemoryKind : std::uint8_t { weights, cache, recurrent, other };
constexpr std::size_t kMemoryKinds = 4;

constexpr std::uint32_t kNoScratch = 0xffffffffU;

// Bytes [offset, offset + size) of a buffer, or of a piece of scratch memory that the planner places later.
struct View {
  device::Buffer* buffer = nullptr;
  std::uint32_t scratch = kNoScratch;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  MemoryKind kind = MemoryKind::other;

  [[nodiscard]] View part(std::uint64_t begin, std::uint64_t bytes) const;
};

[[nodiscard]] View whole(device::Buffer& buffer, MemoryKind kind = MemoryKind::other);

enum class Access : std::uint8_t { read, write, read_write };

// A view bound to a kernel's slot. `read_bytes` and `written_bytes` are what the kernel moves, which is less than the
// view where it picks rows by an index (experts, embedding, a cache with room to grow).
struct Operand {
  std::uint32_t index = 0;
  View view;
  Access access = Access::read;
  std::uint64_t read_bytes = 0;
  std::uint64_t written_bytes = 0;

  [[nodiscard]] bool writes() const { return access != Access::read; }
};

[[nodiscard]] Operand reads(std::uint32_t index, const View& view);
[[nodiscard]] Operand reads(std::uint32_t index, const View& view, std::uint64_t moved_bytes);
[[nodiscard]] Operand writes(std::uint32_t index, const View& view);
[[nodiscard]] Operand writes(std::uint32_t index, const View& view, std::uint64_t moved_bytes);
[[nodiscard]] Operand updates(std::uint32_t index, const View& view);
// A slot that this launch does not use, bound to something valid.
[[nodiscard]] Operand unused(std::uint32_t index, const Operand& like);

// A kernel launch, or (pipeline null) work of the host between two submissions.
struct Operation {
  const device::Pipeline* pipeline = nullptr;
  std::vector<Operand> operands;
  std::uint32_t bytes_index = 0;
  std::vector<std::byte> bytes;
  device::Size3 threadgroups;
  std::uint32_t threads_per_threadgroup = 0;
  std::function<void()> host;
};

class Pass {
 public:
  // Memory that lives from the first operation that names it to the last.
  [[nodiscard]] View scratch(std::uint64_t bytes);
  void add(Operation operation);
  // Everything recorded before is submitted and waited for; then `work` runs on the host.
  void add_host_work(std::function<void()> work);

  [[nodiscard]] std::span<const Operation> operations() const { return operations_; }
  [[nodiscard]] std::span<const std::uint64_t> scratch_sizes() const { return scratch_sizes_; }

 private:
  std::vector<Operation> operations_;
  std::vector<std::uint64_t> scratch_sizes_;
};

}  // namespace lily::gpu
