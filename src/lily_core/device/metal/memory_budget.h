// device/metal/memory_budget.h -- counts the bytes that Metal holds, and refuses more before the system would.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace lily::device::metal {

struct MemoryLimits {
  std::uint64_t working_set = 0;  // recommended for all buffers together; 0: unknown
  std::uint64_t buffer = 0;       // of one buffer; 0: unknown
  std::uint64_t machine = 0;      // memory that there is; 0: unknown
};

// How the system's limit is raised so that Metal recommends at least `bytes`; empty where the machine is too small.
[[nodiscard]] std::string wired_limit_remedy(std::uint64_t bytes, std::uint64_t machine);

// "17.20 GiB"
[[nodiscard]] std::string gibibytes(std::uint64_t bytes);

class MemoryBudget {
 public:
  explicit MemoryBudget(MemoryLimits limits) : limits_(limits) {}

  // Takes bytes, or throws Error(memory_limit) naming the numbers and how the system's limit is raised.
  void take_allocated(std::uint64_t bytes, const std::string& label) { take(allocated_, bytes, label); }
  void take_wrapped(std::uint64_t bytes, const std::string& label) { take(wrapped_, bytes, label); }
  void release_allocated(std::uint64_t bytes) { release(allocated_, bytes); }
  void release_wrapped(std::uint64_t bytes) { release(wrapped_, bytes); }

  [[nodiscard]] std::uint64_t allocated() const { return read(allocated_); }
  [[nodiscard]] std::uint64_t wrapped() const { return read(wrapped_); }
  [[nodiscard]] const MemoryLimits& limits() const { return limits_; }

 private:
  void take(std::uint64_t& counter, std::uint64_t bytes, const std::string& label);
  void release(std::uint64_t& counter, std::uint64_t bytes);
  [[nodiscard]] std::uint64_t read(const std::uint64_t& counter) const;

  MemoryLimits limits_;
  mutable std::mutex mutex_;
  std::uint64_t allocated_ = 0;
  std::uint64_t wrapped_ = 0;
};

// Bytes taken of a budget, returned when this goes.
class BudgetShare {
 public:
  BudgetShare(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes, bool wrapped, const std::string& label);
  ~BudgetShare();
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  std::shared_ptr<MemoryBudget> budget_;
  std::uint64_t bytes_;
  bool wrapped_;
};

}  // namespace lily::device::metal
