// gpu/pass.cpp -- views, operands and the record of a pass.
#include "gpu/pass.h"

#include <utility>

#include "base/error.h"

namespace lily::gpu {

View View::part(std::uint64_t begin, std::uint64_t bytes) const {
  if (begin > size || bytes > size - begin) {
    throw Error(ErrorKind::backend, "a view of " + std::to_string(bytes) + " bytes at " + std::to_string(begin) +
                                        " leaves its memory of " + std::to_string(size) + " bytes");
  }
  View result = *this;
  result.offset += begin;
  result.size = bytes;
  return result;
}

View whole(device::Buffer& buffer, MemoryKind kind) {
  return {.buffer = &buffer, .scratch = kNoScratch, .offset = 0, .size = buffer.size(), .kind = kind};
}

Operand reads(std::uint32_t index, const View& view) { return reads(index, view, view.size); }

Operand reads(std::uint32_t index, const View& view, std::uint64_t moved_bytes) {
  return {.index = index, .view = view, .access = Access::read, .read_bytes = moved_bytes, .written_bytes = 0};
}

Operand writes(std::uint32_t index, const View& view) { return writes(index, view, view.size); }

Operand writes(std::uint32_t index, const View& view, std::uint64_t moved_bytes) {
  return {.index = index, .view = view, .access = Access::write, .read_bytes = 0, .written_bytes = moved_bytes};
}

Operand updates(std::uint32_t index, const View& view) {
  return {
      .index = index, .view = view, .access = Access::read_write, .read_bytes = view.size, .written_bytes = view.size};
}

Operand unused(std::uint32_t index, const Operand& like) {
  Operand operand = like;
  operand.index = index;
  operand.read_bytes = 0;
  operand.written_bytes = 0;
  return operand;
}

View Pass::scratch(std::uint64_t bytes) {
  scratch_sizes_.push_back(bytes);
  return {.buffer = nullptr,
          .scratch = static_cast<std::uint32_t>(scratch_sizes_.size() - 1),
          .offset = 0,
          .size = bytes,
          .kind = MemoryKind::other};
}

void Pass::add(Operation operation) { operations_.push_back(std::move(operation)); }

void Pass::add_host_work(std::function<void()> work) {
  Operation operation;
  operation.host = std::move(work);
  operations_.push_back(std::move(operation));
}

}  // namespace lily::gpu
