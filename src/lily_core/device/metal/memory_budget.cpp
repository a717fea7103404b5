// device/metal/memory_budget.cpp -- counting bytes, and the refusal in words.
#include "device/metal/memory_budget.h"

#include <utility>

#include "base/error.h"

namespace lily::device::metal {
namespace {

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

}  // namespace

std::string gibibytes(std::uint64_t bytes) {
  const std::uint64_t hundredths = (bytes * 25 + (1U << 27)) >> 28;  // of 2^30 bytes
  const std::string fraction = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + "." + (fraction.size() < 2 ? "0" : "") + fraction + " GiB";
}

// The limit is a number of MiB; a GiB more is left to the system's own use of it, and four to all other programs.
std::string wired_limit_remedy(std::uint64_t bytes, std::uint64_t machine) {
  const std::uint64_t limit = bytes + kGibibyte;
  if (machine > 0 && limit + 4 * kGibibyte > machine) return "";
  return "raise the limit with `sudo sysctl iogpu.wired_limit_mb=" + std::to_string(limit >> 20) + "`";
}

void MemoryBudget::take(std::uint64_t& counter, std::uint64_t bytes, const std::string& label) {
  if (limits_.buffer > 0 && bytes > limits_.buffer) {
    throw Error(ErrorKind::memory_limit, "one buffer of Metal holds at most " + gibibytes(limits_.buffer) +
                                             " on this machine, and \"" + label + "\" needs " + gibibytes(bytes) +
                                             "; use a checkpoint with smaller shards, or lower max_context");
  }
  const std::scoped_lock lock(mutex_);
  const std::uint64_t held = allocated_ + wrapped_;
  if (limits_.working_set > 0 && held + bytes > limits_.working_set) {
    const std::string raise = wired_limit_remedy(held + bytes, limits_.machine);
    throw Error(ErrorKind::memory_limit,
                "\"" + label + "\" needs " + gibibytes(bytes) + " besides the " + gibibytes(held) +
                    " in use, more than the " + gibibytes(limits_.working_set) +
                    " that Metal recommends on this machine; lower max_context or prefill_chunk, or close sessions" +
                    (raise.empty() ? "" : ", or " + raise));
  }
  counter += bytes;
}

void MemoryBudget::release(std::uint64_t& counter, std::uint64_t bytes) {
  const std::scoped_lock lock(mutex_);
  counter -= bytes;
}

std::uint64_t MemoryBudget::read(const std::uint64_t& counter) const {
  const std::scoped_lock lock(mutex_);
  return counter;
}

BudgetShare::BudgetShare(std::shared_ptr<MemoryBudget> budget, std::uint64_t bytes, bool wrapped,
                         const std::string& label)
    : budget_(std::move(budget)), bytes_(bytes), wrapped_(wrapped) {
  if (wrapped_) {
    budget_->take_wrapped(bytes_, label);
  } else {
    budget_->take_allocated(bytes_, label);
  }
}

BudgetShare::~BudgetShare() {
  if (wrapped_) {
    budget_->release_wrapped(bytes_);
  } else {
    budget_->release_allocated(bytes_);
  }
}

}  // namespace lily::device::metal
