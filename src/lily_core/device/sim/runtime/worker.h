// sim/runtime/worker.h -- one OS thread's means to run threadgroups: fiber stacks, threadgroup memory, scheduling.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/lane.h"

namespace lily_sim {

constexpr std::size_t kStackBytes = 128 << 10;
constexpr std::size_t kGuardBytes = 64 << 10;   // a stack probe of AArch64 reaches this far
constexpr std::size_t kArenaBytes = 128 << 10;  // more than a threadgroup may use, so that red zones fit
constexpr std::size_t kRedZoneBytes = 64;
constexpr std::size_t kMaxVariables = 64;

// One variable in threadgroup memory.
struct ThreadgroupVariable {
  const void* marker;
  std::uint8_t* data;
  std::uint64_t size;
  const char* name;
};

class Worker {
 public:
  explicit Worker(u32 index);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs one threadgroup to its end, or to its first error. `linear` is its number within the stage, `position` its
  // number within the launch.
  void run(const Launch& launch, u32 position, u32 linear);
  void set_order(Order order, std::uint64_t seed);

  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] const char* message() const { return message_; }

  // What fibers call.
  void suspend();
  void lane_body();
  void barrier(u32 flags, const char* file, u32 line);
  void* variable(const void* marker, u64 size, u64 alignment, const char* name);
  void set_failed() { failed_ = true; }
  [[noreturn]] void leave();  // abandons the threadgroup
  char* message_buffer() { return message_; }
  static constexpr std::size_t kMessageBytes = 1024;

  // What the checker asks.
  [[nodiscard]] bool in_arena(std::uintptr_t address) const { return address - arena_begin() < kArenaBytes; }
  [[nodiscard]] std::uintptr_t arena_begin() const { return reinterpret_cast<std::uintptr_t>(arena_); }
  [[nodiscard]] bool on_stack(std::uintptr_t address) const {
    return address - reinterpret_cast<std::uintptr_t>(stacks_) < stack_count_ * (kStackBytes + kGuardBytes);
  }
  [[nodiscard]] std::uintptr_t stack_top(u32 thread) const {
    return reinterpret_cast<std::uintptr_t>(stacks_) + (std::size_t{thread} + 1) * (kStackBytes + kGuardBytes);
  }
  [[nodiscard]] bool owns(std::uintptr_t address) const {
    return address - reinterpret_cast<std::uintptr_t>(this) < sizeof(Worker);
  }
  [[nodiscard]] const ThreadgroupVariable* find_variable(std::uintptr_t address) const;

 private:
  void ensure_stacks(std::size_t count);
  void place_argument_memory(u32 bytes);
  void prepare_simdgroup(Simdgroup& group, u32 index);
  void switch_to_next(void** save);
  void wake_all();
  void report_deadlock();
  std::uint8_t* carve(u64 size, u64 alignment);
  [[nodiscard]] u32 pick(u32 mask);

  Simdgroup simdgroups_[kMaxThreads / kSimdWidth];
  Threadgroup threadgroup_ = {};
  ThreadgroupVariable variables_[kMaxVariables] = {};
  std::size_t variable_count_ = 0;
  std::uint8_t* arena_ = nullptr;
  std::size_t arena_used_ = 0;
  std::uint64_t memory_used_ = 0;  // threadgroup memory as Metal counts it
  std::uint8_t* stacks_ = nullptr;
  std::size_t stack_count_ = 0;
  void* scheduler_ = nullptr;  // context of run()
  Order order_ = Order::forward;
  std::uint64_t random_ = 1;
  bool failed_ = false;
  char message_[kMessageBytes] = {};
};

}  // namespace lily_sim
