// sim/runtime/worker.cpp -- runs the fibers of a threadgroup and meets their barriers.
#include "runtime/worker.h"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>

#include "runtime/checker.h"
#include "runtime/fiber.h"

namespace lily_sim {

thread_local __attribute__((tls_model("initial-exec"))) Simdgroup* current_simdgroup = nullptr;

namespace {

std::uint8_t* map_pages(std::size_t bytes) {
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::uint8_t*>(pages);
}

u32 nth_set_bit(u32 mask, u32 count) {
  while (count-- > 0) mask &= mask - 1;
  return static_cast<u32>(__builtin_ctz(mask));
}

void fiber_main() { current_simdgroup->threadgroup->worker->lane_body(); }

u32 thread_index() { return current_simdgroup->index * kSimdWidth + current_simdgroup->lane; }

}  // namespace

Worker::Worker(u32 index) : arena_(map_pages(kArenaBytes)), random_(0x9e3779b97f4a7c15ull + index) {
  std::memset(simdgroups_, 0, sizeof simdgroups_);
}

Worker::~Worker() {
  munmap(arena_, kArenaBytes);
  if (stacks_ != nullptr) munmap(stacks_, stack_count_ * (kStackBytes + kGuardBytes));
}

void Worker::set_order(Order order, std::uint64_t seed) {
  order_ = order;
  random_ = (seed + 1) * 0x9e3779b97f4a7c15ull | 1;
  failed_ = false;
}

void Worker::ensure_stacks(std::size_t count) {
  if (stack_count_ >= count) return;
  constexpr std::size_t step = kStackBytes + kGuardBytes;
  std::uint8_t* stacks = map_pages(count * step);
  for (std::size_t i = 0; i < count; ++i) mprotect(stacks + i * step, kGuardBytes, PROT_NONE);
  if (stacks_ != nullptr) munmap(stacks_, stack_count_ * step);
  stacks_ = stacks;
  stack_count_ = count;
}

std::uint8_t* Worker::carve(u64 size, u64 alignment) {
  const std::size_t begin = (arena_used_ + kRedZoneBytes + alignment - 1) / alignment * alignment;
  memory_used_ += size;
  if (memory_used_ > kThreadgroupMemory || begin + size + kRedZoneBytes > kArenaBytes) return nullptr;
  arena_used_ = begin + size;
  std::memset(arena_ + begin, 0xff, size);  // NaN as float, half and bfloat
  return arena_ + begin;
}

void Worker::place_argument_memory(u32 bytes) {
  threadgroup_.argument_memory = carve(bytes, 16);
  variables_[variable_count_++] = {nullptr, threadgroup_.argument_memory, bytes, "[[threadgroup(0)]]"};
}

void Worker::prepare_simdgroup(Simdgroup& group, u32 index) {
  group.index = index;
  group.threadgroup = &threadgroup_;
  group.alive = group.ready = kAllLanes;
  group.arrived = group.at_barrier = group.parity = 0;
  group.threadgroup_epoch = group.device_epoch = 1;
  for (u32 lane = 0; lane < kSimdWidth; ++lane) {
    const u32 thread = index * kSimdWidth + lane;
    // Stacks at equal offsets would share cache sets: start them at different ones.
    std::uint8_t* top = stacks_ + (thread + 1) * (kStackBytes + kGuardBytes) - std::size_t{(thread * 13) % 64} * 64;
    group.stack_pointers[lane] = make_fiber(top, fiber_main);
  }
}

void Worker::run(const Launch& launch, u32 position, u32 linear) {
  const Size3 grid = launch.threadgroups;
  threadgroup_.launch = &launch;
  threadgroup_.position = {position % grid.x, position / grid.x % grid.y, position / (grid.x * grid.y)};
  threadgroup_.linear = linear;
  threadgroup_.threads = threadgroup_.alive = launch.threads;
  threadgroup_.simdgroups = launch.threads / kSimdWidth;
  threadgroup_.waiting = 0;
  threadgroup_.threadgroup_epoch = threadgroup_.device_epoch = 1;
  threadgroup_.worker = this;
  variable_count_ = arena_used_ = 0;
  memory_used_ = 0;
  ensure_stacks(launch.threads);
  for (u32 i = 0; i < launch.binding_count; ++i) {
    const Binding& binding = launch.bindings[i];
    threadgroup_.buffers[binding.index] = binding.memory->base + binding.offset;
  }
  if (launch.bytes_size > 0) threadgroup_.buffers[launch.bytes_index] = const_cast<void*>(launch.bytes);
  if (launch.threadgroup_bytes > 0) place_argument_memory(launch.threadgroup_bytes);
  checker_begin_threadgroup();
  for (u32 i = 0; i < threadgroup_.simdgroups; ++i) prepare_simdgroup(simdgroups_[i], i);
  threadgroup_.ready_simdgroups = threadgroup_.simdgroups == 32 ? kAllLanes : (1u << threadgroup_.simdgroups) - 1;
  current_simdgroup = &simdgroups_[pick(threadgroup_.ready_simdgroups)];
  switch_to_next(&scheduler_);
  if (!failed_ && threadgroup_.alive > 0) report_deadlock();
  current_simdgroup = nullptr;
}

u32 Worker::pick(u32 mask) {
  if (order_ == Order::forward) return static_cast<u32>(__builtin_ctz(mask));
  if (order_ == Order::reverse) return 31 - static_cast<u32>(__builtin_clz(mask));
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return nth_set_bit(mask, static_cast<u32>(random_ >> 32) % static_cast<u32>(__builtin_popcount(mask)));
}

// Continues a lane that can run, or run() when there is none: all have returned, or they wait for each other.
void Worker::switch_to_next(void** save) {
  Simdgroup* group = current_simdgroup;
  if (group->ready == 0 || order_ == Order::random) {
    if (threadgroup_.ready_simdgroups == 0) {
      lily_sim_switch(save, scheduler_);
      return;
    }
    group = &simdgroups_[pick(threadgroup_.ready_simdgroups)];
    current_simdgroup = group;
  }
  const u32 lane = pick(group->ready);
  group->ready &= ~(1u << lane);
  if (group->ready == 0) threadgroup_.ready_simdgroups &= ~(1u << group->index);
  group->lane = lane;
  if (&group->stack_pointers[lane] == save) return;  // picked itself: its saved stack pointer is stale
  lily_sim_switch(save, group->stack_pointers[lane]);
}

void Worker::suspend() {
  Simdgroup* group = current_simdgroup;
  switch_to_next(&group->stack_pointers[group->lane]);
}

void Worker::leave() {
  void* abandoned = nullptr;
  lily_sim_switch(&abandoned, scheduler_);
  __builtin_unreachable();
}

void Worker::lane_body() {
  threadgroup_.launch->entry->run();
  Simdgroup* group = current_simdgroup;
  if (group->arrived != 0) {
    fail("thread returns while lanes %08x of its simdgroup wait at the simdgroup operation at %s:%u", group->arrived,
         base_name(group->site.file), group->site.line);
  }
  if (threadgroup_.waiting > 0) {
    fail("thread returns while %u threads wait at the threadgroup_barrier at %s:%u", threadgroup_.waiting,
         base_name(threadgroup_.barrier.file), threadgroup_.barrier.line);
  }
  group->alive &= ~(1u << group->lane);
  --threadgroup_.alive;
  void* finished = nullptr;
  switch_to_next(&finished);
  __builtin_trap();
}

void Worker::wake_all() {
  for (u32 i = 0; i < threadgroup_.simdgroups; ++i) {
    Simdgroup& group = simdgroups_[i];
    group.ready |= group.at_barrier;
    group.at_barrier = 0;
    if (group.ready != 0) threadgroup_.ready_simdgroups |= 1u << i;
  }
}

void Worker::barrier(u32 flags, const char* file, u32 line) {
  Simdgroup* group = current_simdgroup;
  const u32 lane = group->lane;
  if (threadgroup_.alive != threadgroup_.threads) {
    fail("threadgroup_barrier at %s:%u after %u threads of the threadgroup have returned", base_name(file), line,
         threadgroup_.threads - threadgroup_.alive);
  }
  if (threadgroup_.waiting == 0) {
    threadgroup_.barrier = {file, line, flags};
  } else if (threadgroup_.barrier.line != line || threadgroup_.barrier.file != file) {
    fail("divergent threadgroup_barrier: %u threads wait at %s:%u, this one is at %s:%u", threadgroup_.waiting,
         base_name(threadgroup_.barrier.file), threadgroup_.barrier.line, base_name(file), line);
  }
  ++threadgroup_.waiting;
  group->at_barrier |= 1u << lane;
  if (threadgroup_.waiting == threadgroup_.alive) {
    threadgroup_.waiting = 0;
    if ((flags & kFlagThreadgroup) != 0) ++threadgroup_.threadgroup_epoch;
    if ((flags & kFlagDevice) != 0) ++threadgroup_.device_epoch;
    wake_all();
  }
  switch_to_next(&group->stack_pointers[lane]);
}

void* Worker::variable(const void* marker, u64 size, u64 alignment, const char* name) {
  for (std::size_t i = 0; i < variable_count_; ++i) {
    if (variables_[i].marker == marker) return variables_[i].data;
  }
  std::uint8_t* data = variable_count_ < kMaxVariables ? carve(size, alignment) : nullptr;
  if (data == nullptr) {
    fail("%lu bytes of threadgroup memory with '%s'; Metal allows %u", static_cast<unsigned long>(memory_used_), name,
         kThreadgroupMemory);
  }
  variables_[variable_count_++] = {marker, data, size, name};
  return data;
}

const ThreadgroupVariable* Worker::find_variable(std::uintptr_t address) const {
  for (std::size_t i = 0; i < variable_count_; ++i) {
    if (address - reinterpret_cast<std::uintptr_t>(variables_[i].data) < variables_[i].size) return &variables_[i];
  }
  return nullptr;
}

void Worker::report_deadlock() {
  failed_ = true;
  const Size3 at = threadgroup_.position;
  int used = std::snprintf(message_, kMessageBytes,
                           "%s: [threadgroup %u,%u,%u] threads wait for each other:", threadgroup_.launch->entry->name,
                           at.x, at.y, at.z);
  for (u32 i = 0; i < threadgroup_.simdgroups && used < static_cast<int>(kMessageBytes) - 200; ++i) {
    const Simdgroup& group = simdgroups_[i];
    if (group.arrived != 0) {
      used += std::snprintf(message_ + used, 100, " simdgroup %u lanes %08x at %s:%u;", i, group.arrived,
                            base_name(group.site.file), group.site.line);
    }
    if (group.at_barrier != 0) {
      used += std::snprintf(message_ + used, 100, " simdgroup %u lanes %08x at the barrier %s:%u;", i, group.at_barrier,
                            base_name(threadgroup_.barrier.file), threadgroup_.barrier.line);
    }
  }
}

const char* base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

void suspend_lane() { current_simdgroup->threadgroup->worker->suspend(); }

void fail(const char* format, ...) {
  const Threadgroup& threadgroup = *current_simdgroup->threadgroup;
  Worker& worker = *threadgroup.worker;
  if (!worker.failed()) {
    worker.set_failed();
    const Size3 at = threadgroup.position;
    const int used =
        std::snprintf(worker.message_buffer(), Worker::kMessageBytes, "%s: [threadgroup %u,%u,%u thread %u] ",
                      threadgroup.launch->entry->name, at.x, at.y, at.z, thread_index());
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(worker.message_buffer() + used, Worker::kMessageBytes - static_cast<std::size_t>(used), format,
                   arguments);
    va_end(arguments);
  }
  worker.leave();
}

void fail_divergent(const Simdgroup& group, const Site& site) {
  if (group.alive != kAllLanes) {
    fail("simdgroup operation at %s:%u, but lanes %08x of the simdgroup have returned", base_name(site.file), site.line,
         ~group.alive);
  }
  fail("divergent simdgroup operation: lanes %08x wait at %s:%u (operation %u), this lane is at %s:%u (operation %u)",
       group.arrived, base_name(group.site.file), group.site.line, group.site.operation, base_name(site.file),
       site.line, site.operation);
}

void threadgroup_barrier(u32 flags, const char* file, u32 line) {
  current_simdgroup->threadgroup->worker->barrier(flags, file, line);
}

void simdgroup_barrier(u32 flags, const char* file, u32 line) {
  Simdgroup& group = *current_simdgroup;
  if (!arrive(group, op_barrier, file, line)) return;
  if ((flags & kFlagThreadgroup) != 0) ++group.threadgroup_epoch;
  if ((flags & kFlagDevice) != 0) ++group.device_epoch;
  complete(group);
}

void* threadgroup_variable(const void* marker, u64 size, u64 alignment, const char* name) {
  return current_simdgroup->threadgroup->worker->variable(marker, size, alignment, name);
}

}  // namespace lily_sim
