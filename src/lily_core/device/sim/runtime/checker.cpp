// sim/runtime/checker.cpp -- checks every access of the checked library: bounds, declared ranges, initialisation,
// races.
#include "runtime/checker.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/access_check.h"
#include "runtime/line_table.h"
#include "runtime/shadow.h"
#include "runtime/worker.h"

namespace lily_sim {

const bool kChecked = true;

namespace {

constexpr std::size_t kMaxFindings = 8;

// The checked library runs on one thread; its state lives from stage to stage.
struct Checker {
  bool active = false;
  bool check_ranges = true;
  Launch* launch = nullptr;
  std::uint32_t generation = 0;        // of the stage
  std::uint32_t arena_generation = 0;  // of the threadgroup
  std::set<const Memory*> written;     // memories that some launch of the stage may write
  std::vector<Cell> arena = std::vector<Cell>(kArenaBytes / kCellBytes);
  std::set<std::pair<std::uintptr_t, std::uintptr_t>> seen;
  std::string findings;
};

Checker& checker() {
  static Checker instance;
  return instance;
}

std::uint16_t running_thread() {
  return static_cast<std::uint16_t>(current_simdgroup->index * kSimdWidth + current_simdgroup->lane);
}

Access make_access(bool in_threadgroup_memory, bool atomic, std::uintptr_t place) {
  const Simdgroup& group = *current_simdgroup;
  const Threadgroup& threadgroup = *group.threadgroup;
  return {.threadgroup = threadgroup.linear,
          .epoch = in_threadgroup_memory ? threadgroup.threadgroup_epoch : threadgroup.device_epoch,
          .simdgroup_epoch = in_threadgroup_memory ? group.threadgroup_epoch : group.device_epoch,
          .thread = running_thread(),
          .atomic = atomic,
          .place = place};
}

// Adds a finding unless the same places were reported before; the kernel goes on.
void find(std::uintptr_t place, std::uintptr_t other, const std::string& text) {
  Checker& state = checker();
  if (state.seen.size() >= kMaxFindings || !state.seen.insert({place, other}).second) return;
  if (!state.findings.empty()) state.findings += "\n";
  state.findings += std::string(state.launch->entry->name) + ": " + text;
}

void find_race(Conflict conflict, const Access& access, const Access& other, const std::string& where) {
  const char* kind = conflict == Conflict::write_after_write  ? "two writes"
                     : conflict == Conflict::read_after_write ? "a write and a read"
                                                              : "a read and a write";
  const bool together = access.threadgroup == other.threadgroup;
  find(access.place, other.place,
       std::string("race of ") + kind + " at " + where + ": thread " + std::to_string(access.thread) + " at " +
           describe_place(access.place) + ", thread " + std::to_string(other.thread) +
           (together ? "" : " of another threadgroup") + " at " + describe_place(other.place));
}

const char* verb(bool write) { return write ? "write" : "read"; }

void check_arena(std::uintptr_t address, std::uint64_t bytes, bool write, bool atomic, std::uintptr_t place) {
  Checker& state = checker();
  const Worker& worker = *current_simdgroup->threadgroup->worker;
  const ThreadgroupVariable* variable = worker.find_variable(address);
  if (variable == nullptr) {
    fail("%s of %lu bytes outside every threadgroup variable at %s", verb(write), static_cast<unsigned long>(bytes),
         describe_place(place).c_str());
  }
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(variable->data);
  if (offset + bytes > variable->size) {
    fail("%s of %lu bytes at offset %lu of threadgroup variable '%s', which has %lu, at %s", verb(write),
         static_cast<unsigned long>(bytes), static_cast<unsigned long>(offset), variable->name,
         static_cast<unsigned long>(variable->size), describe_place(place).c_str());
  }
  const Access access = make_access(true, atomic, place);
  const auto where = [&](std::uint64_t cells) {
    return std::string("threadgroup variable '") + variable->name + "' offset " +
           std::to_string(offset + cells * kCellBytes);
  };
  const std::uint64_t first = (address - worker.arena_begin()) / kCellBytes;
  const std::uint64_t last = (address - worker.arena_begin() + bytes - 1) / kCellBytes;
  for (std::uint64_t index = first; index <= last; ++index) {
    Cell& cell = state.arena[index];
    if (!write && (cell.generation != state.arena_generation || !cell.written)) {
      find(place, 0, "read of " + where(index - first) + ", which nothing has written, at " + describe_place(place));
    }
    Access other = {};
    const Conflict conflict = note_access(cell, access, write, state.arena_generation, other);
    if (conflict != Conflict::none) find_race(conflict, access, other, where(index - first));
  }
}

void widen(Range& range, std::uint64_t begin, std::uint64_t end) {
  if (range.begin >= range.end) {
    range = {begin, end};
  } else {
    range = {std::min<std::uint64_t>(range.begin, begin), std::max<std::uint64_t>(range.end, end)};
  }
}

BufferShadow& shadow_of(Memory& memory) {
  if (memory.shadow == nullptr) memory.shadow = std::make_unique<BufferShadow>(memory.size).release();
  return *static_cast<BufferShadow*>(memory.shadow);
}

bool holds_pattern(const Memory& memory, std::uint64_t cell) {
  const std::uint64_t begin = cell * kCellBytes;
  if (begin + kCellBytes > memory.size) return false;
  return (memory.base[begin] | memory.base[begin + 1] << 8) == kPoison;
}

// Whether a cell that no kernel wrote still holds what the allocation was filled with. The host's writes are not seen:
// half a float may look like the pattern by chance, so the other half of the word must hold it, too.
bool never_written(const Memory& memory, const BufferShadow& shadow, std::uint64_t cell) {
  if (shadow.was_written(cell) || !holds_pattern(memory, cell)) return false;
  const std::uint64_t other = cell ^ 1;
  const bool no_other = (other + 1) * kCellBytes > memory.size;
  return no_other || shadow.was_written(other) || holds_pattern(memory, other);
}

void check_cells(Memory& memory, std::uint64_t begin, std::uint64_t end, bool write, bool atomic,
                 std::uintptr_t place) {
  Checker& state = checker();
  const bool may_race = state.written.contains(&memory);
  if (!may_race && !memory.poisoned) return;
  BufferShadow& shadow = shadow_of(memory);
  const Access access = make_access(false, atomic, place);
  for (std::uint64_t index = begin / kCellBytes; index <= (end - 1) / kCellBytes; ++index) {
    if (!write && memory.poisoned && never_written(memory, shadow, index)) {
      find(place, 0,
           "read of buffer '" + std::string(memory.label) + "' offset " + std::to_string(index * kCellBytes) +
               ", which nothing has written, at " + describe_place(place));
    }
    if (write) shadow.mark_written(index);
    if (!may_race) continue;
    Access other = {};
    const Conflict conflict = note_access(shadow.cell(index), access, write, state.generation, other);
    if (conflict == Conflict::none) continue;
    find_race(conflict, access, other,
              "buffer '" + std::string(memory.label) + "' offset " + std::to_string(index * kCellBytes));
  }
}

bool permits(const Binding& binding, std::uint64_t begin, std::uint64_t end, bool write) {
  return begin >= binding.offset && end <= binding.offset + binding.size && (binding.written || !write);
}

// The binding that an access inside `memory` belongs to; fails when no declared range permits it.
Binding& attribute(Memory& memory, std::uint64_t begin, std::uint64_t end, bool write, std::uintptr_t place) {
  Checker& state = checker();
  Binding* nearest = nullptr;
  for (u32 i = 0; i < state.launch->binding_count; ++i) {
    Binding& binding = state.launch->bindings[i];
    if (binding.memory != &memory) continue;
    if (permits(binding, begin, end, write)) return binding;
    if (nearest == nullptr) nearest = &binding;
  }
  if (state.check_ranges) {
    fail("%s of bytes %lu to %lu of buffer '%s' at %s: not in the range declared for slot %u (bytes %lu to %lu, %s)",
         verb(write), static_cast<unsigned long>(begin), static_cast<unsigned long>(end), memory.label,
         describe_place(place).c_str(), nearest->index, static_cast<unsigned long>(nearest->offset),
         static_cast<unsigned long>(nearest->offset + nearest->size), nearest->written ? "written" : "only read");
  }
  return *nearest;
}

[[noreturn]] void fail_outside(std::uintptr_t address, std::uint64_t bytes, bool write, std::uintptr_t place) {
  const Launch& launch = *checker().launch;
  const Binding* nearest = nullptr;
  std::uint64_t distance = ~std::uint64_t{0};
  for (u32 i = 0; i < launch.binding_count; ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(launch.bindings[i].memory->base);
    const std::uintptr_t end = base + launch.bindings[i].memory->size;
    const std::uint64_t gap = address >= end ? address - end : base - address;
    if (gap < distance) {
      distance = gap;
      nearest = &launch.bindings[i];
    }
  }
  if (nearest == nullptr) fail("%s out of bounds at %s", verb(write), describe_place(place).c_str());
  const auto base = reinterpret_cast<std::uintptr_t>(nearest->memory->base);
  fail("%s of %lu bytes out of bounds at %s: offset %ld of buffer '%s' (slot %u), which has %lu bytes", verb(write),
       static_cast<unsigned long>(bytes), describe_place(place).c_str(), static_cast<long>(address - base),
       nearest->memory->label, nearest->index, static_cast<unsigned long>(nearest->memory->size));
}

void check_buffers(std::uintptr_t address, std::uint64_t bytes, bool write, bool atomic, std::uintptr_t place) {
  const Launch& launch = *checker().launch;
  for (u32 i = 0; i < launch.binding_count; ++i) {
    Memory& memory = *launch.bindings[i].memory;
    const std::uint64_t begin = address - reinterpret_cast<std::uintptr_t>(memory.base);
    if (begin >= memory.size) continue;
    if (begin + bytes > memory.size) break;
    Binding& binding = attribute(memory, begin, begin + bytes, write, place);
    widen(write ? binding.written_range : binding.read_range, begin, begin + bytes);
    check_cells(memory, begin, begin + bytes, write, atomic, place);
    return;
  }
  const auto arguments = reinterpret_cast<std::uintptr_t>(launch.bytes);
  if (address - arguments < launch.bytes_size && !write) {
    if (address - arguments + bytes <= launch.bytes_size) return;
    fail("read past the end of the argument struct at %s", describe_place(place).c_str());
  }
  if (in_library(address)) return;
  fail_outside(address, bytes, write, place);
}

bool is_executors(const Worker& worker, std::uintptr_t address) {
  if (worker.on_stack(address) || worker.owns(address)) return true;
  const auto launch = reinterpret_cast<std::uintptr_t>(checker().launch);
  const auto slot = reinterpret_cast<std::uintptr_t>(&current_simdgroup);
  return address - launch < sizeof(Launch) || address - slot < sizeof(void*);
}

}  // namespace

void check_access(std::uintptr_t address, std::uint64_t bytes, bool write, bool atomic, std::uintptr_t place) {
  if (!checker().active || current_simdgroup == nullptr || bytes == 0) return;
  const Worker& worker = *current_simdgroup->threadgroup->worker;
  if (is_executors(worker, address)) return;
  if (worker.in_arena(address)) {
    check_arena(address, bytes, write, atomic, place);
  } else {
    check_buffers(address, bytes, write, atomic, place);
  }
}

void checker_begin_stage(Launch* launches, u32 count, const RunOptions& options) {
  Checker& state = checker();
  state.active = true;
  state.check_ranges = options.check_declared_ranges;
  ++state.generation;
  state.written.clear();
  state.seen.clear();
  state.findings.clear();
  for (u32 i = 0; i < count; ++i) {
    for (u32 j = 0; j < launches[i].binding_count; ++j) {
      const Binding& binding = launches[i].bindings[j];
      if (binding.written || !options.check_declared_ranges) state.written.insert(binding.memory);
    }
  }
}

void checker_begin_launch(Launch* launch) { checker().launch = launch; }
void checker_begin_threadgroup() { ++checker().arena_generation; }

void checker_end_stage(Report& report) {
  Checker& state = checker();
  state.active = false;
  const std::string text =
      std::string(report.text) + (report.text[0] != '\0' && !state.findings.empty() ? "\n" : "") + state.findings;
  std::snprintf(report.text, sizeof report.text, "%s", text.c_str());
}

void checker_release(Memory* memory) {
  const std::unique_ptr<BufferShadow> released(static_cast<BufferShadow*>(memory->shadow));
  memory->shadow = nullptr;
}

void checker_load_lines(const char* path) { load_line_table(path); }

}  // namespace lily_sim
