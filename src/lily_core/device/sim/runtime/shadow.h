// sim/runtime/shadow.h -- who touched memory last: the record from which races and uninitialised reads are found.
//
// One cell stands for two bytes. "Before" means: in an earlier barrier epoch of the threadgroup, or in the same
// simdgroup and an earlier epoch of it. So what is found does not depend on the order in which threads ran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/abi.h"

namespace lily_sim {

constexpr std::uint64_t kCellBytes = 2;

// One access: by which thread, when, and from where in the code.
struct Access {
  std::uint32_t threadgroup;  // unique in the stage
  std::uint32_t epoch;        // barriers of the threadgroup passed
  std::uint32_t simdgroup_epoch;
  std::uint16_t thread;
  bool atomic;
  std::uintptr_t place;  // return address
};

enum class Readers : std::uint8_t { none, one_thread, one_simdgroup, one_threadgroup, many };

struct Cell {
  std::uint32_t generation;  // of the stage or threadgroup that the record belongs to
  bool written;
  Readers readers;
  Access last_write;
  Access last_read;
};

enum class Conflict : std::uint8_t { none, write_after_write, read_after_write, write_after_read };

// Notes an access in a cell. `other` is the access that it races with, if any.
Conflict note_access(Cell& cell, const Access& access, bool write, std::uint32_t generation, Access& other);

// The shadow of a device buffer: cells in pages made when they are first needed, and which cells kernels ever wrote.
class BufferShadow {
 public:
  explicit BufferShadow(std::uint64_t bytes);
  [[nodiscard]] Cell& cell(std::uint64_t index);
  void mark_written(std::uint64_t index) { written_[index] = true; }
  [[nodiscard]] bool was_written(std::uint64_t index) const { return written_[index]; }

 private:
  static constexpr std::uint64_t kPageCells = 1024;
  std::vector<std::unique_ptr<std::vector<Cell>>> pages_;
  std::vector<bool> written_;
};

}  // namespace lily_sim
