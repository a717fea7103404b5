// sim/runtime/shadow.cpp -- the happens-before relation of Metal's barriers.
#include "runtime/shadow.h"

namespace lily_sim {
namespace {

bool same_simdgroup(const Access& a, const Access& b) { return a.thread / kSimdWidth == b.thread / kSimdWidth; }

// Whether a barrier, or program order, puts `earlier` before `later`; `readers` widens a read to all that it stands
// for.
bool ordered(const Access& earlier, const Access& later, Readers readers) {
  if (earlier.threadgroup != later.threadgroup || readers == Readers::many) return false;
  if (earlier.epoch < later.epoch) return true;
  if (readers == Readers::one_threadgroup) return false;
  if (readers == Readers::one_thread && earlier.thread == later.thread) return true;
  return same_simdgroup(earlier, later) && earlier.simdgroup_epoch < later.simdgroup_epoch;
}

// The readers of a cell since its last write, with one more.
Readers add_reader(const Cell& cell, const Access& access) {
  if (cell.readers == Readers::none) return Readers::one_thread;
  if (cell.readers == Readers::many || cell.last_read.threadgroup != access.threadgroup) return Readers::many;
  if (cell.last_read.epoch != access.epoch) return Readers::one_thread;  // a barrier since: the later reads matter
  if (cell.readers == Readers::one_threadgroup || !same_simdgroup(cell.last_read, access)) {
    return Readers::one_threadgroup;
  }
  const bool alone = cell.readers == Readers::one_thread && cell.last_read.thread == access.thread;
  return alone ? Readers::one_thread : Readers::one_simdgroup;
}

}  // namespace

Conflict note_access(Cell& cell, const Access& access, bool write, std::uint32_t generation, Access& other) {
  if (cell.generation != generation) {
    cell = {};
    cell.generation = generation;
  }
  Conflict conflict = Conflict::none;
  const bool atomic_pair = access.atomic && cell.last_write.atomic;
  if (cell.written && !atomic_pair && !ordered(cell.last_write, access, Readers::one_thread)) {
    conflict = write ? Conflict::write_after_write : Conflict::read_after_write;
    other = cell.last_write;
  } else if (write && cell.readers != Readers::none && !(access.atomic && cell.last_read.atomic) &&
             !ordered(cell.last_read, access, cell.readers)) {
    conflict = Conflict::write_after_read;
    other = cell.last_read;
  }
  if (write) {
    cell.written = true;
    cell.last_write = access;
    cell.readers = Readers::none;
  } else {
    cell.readers = add_reader(cell, access);
    cell.last_read = access;
  }
  return conflict;
}

BufferShadow::BufferShadow(std::uint64_t bytes)
    : pages_((bytes / kCellBytes + kPageCells) / kPageCells), written_(bytes / kCellBytes + 1) {}

Cell& BufferShadow::cell(std::uint64_t index) {
  auto& page = pages_[index / kPageCells];
  if (!page) page = std::make_unique<std::vector<Cell>>(kPageCells);
  return (*page)[index % kPageCells];
}

}  // namespace lily_sim
