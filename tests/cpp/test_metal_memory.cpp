// tests/cpp/test_metal_memory.cpp -- the budget of memory, and the heartbeat that keeps it resident.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/metal/heartbeat.h"
#include "device/metal/memory_budget.h"
#include "text.h"

namespace lily::device::metal {
namespace {

using namespace std::chrono_literals;

TEST_CASE("memory budget") {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 10ULL << 30, .buffer = 6ULL << 30});
  const BudgetShare weights(budget, 5ULL << 30, true, "weights");
  {
    const BudgetShare cache(budget, 4ULL << 30, false, "cache");
    REQUIRE_MESSAGE((budget->allocated() == 4ULL << 30 && budget->wrapped() == 5ULL << 30), "counts");
    const std::string text =
        error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 3ULL << 29, false, "scratch"); });
    REQUIRE_MESSAGE((contains(text, "\"scratch\" needs 1.50 GiB besides the 9.00 GiB") && contains(text, "10.00 GiB")),
                    text);
    REQUIRE_MESSAGE(contains(text, "iogpu.wired_limit_mb=11776"), text);  // 10.5 GiB and one more
  }
  REQUIRE_MESSAGE(budget->allocated() == 0, "released");
  const BudgetShare fits(budget, 5ULL << 30, false, "cache");
  const std::string text =
      error_of(ErrorKind::memory_limit, [&] { const BudgetShare big(budget, 7ULL << 30, true, "shard"); });
  REQUIRE_MESSAGE((contains(text, "one buffer of Metal holds at most 6.00 GiB") && contains(text, "shard")), text);
  // The remedy must be one that the machine's memory has room for, with 4 GiB for everything else.
  REQUIRE_MESSAGE(contains(wired_limit_remedy(10ULL << 30, 16ULL << 30), "iogpu.wired_limit_mb=11264"),
                  "a limit that fits");
  REQUIRE_MESSAGE(contains(wired_limit_remedy(11ULL << 30, 16ULL << 30), "wired_limit_mb=12288"),
                  "the largest that fits");
  REQUIRE_MESSAGE(wired_limit_remedy((11ULL << 30) + 1, 16ULL << 30).empty(), "no limit beyond the machine's memory");
}

// Exactly the limit still fits; one byte more does not. A refusal that is too early costs memory that there is.
TEST_CASE("limits of the budget are exact") {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 1000, .buffer = 600, .machine = 0});
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 601, false, "one byte too many"); });
  const BudgetShare largest(budget, 600, false, "largest");
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 401, true, "one byte too many"); });
  REQUIRE_MESSAGE((budget->allocated() == 600 && budget->wrapped() == 0), "what was refused is not counted");
  const BudgetShare rest(budget, 400, true, "rest");
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 1, false, "one byte too many"); });
  const BudgetShare nothing(budget, 0, false, "nothing");
}

TEST_CASE("gibibytes are rounded") {
  constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;
  const auto thousandths = [](std::uint64_t count) { return gibibytes(count * kGibibyte / 1000); };
  REQUIRE_MESSAGE((thousandths(1996) == "2.00 GiB" && thousandths(1994) == "1.99 GiB"), thousandths(1996),
                  thousandths(1994));
  REQUIRE_MESSAGE((thousandths(1044) == "1.04 GiB" && thousandths(1046) == "1.05 GiB"), thousandths(1044),
                  thousandths(1046));
  REQUIRE_MESSAGE((gibibytes(0) == "0.00 GiB" && gibibytes(kGibibyte) == "1.00 GiB"), "whole numbers");
}

// Many turns of four threads that begin together.
void repeat_on_threads(const std::function<void()>& turn) {
  constexpr int kThreads = 4;
  std::latch begin(kThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      for (int round = 0; round < 50'000; ++round) turn();
    });
  }
}

// Whoever adds or subtracts without the lock loses some of it. What all threads do at once meets itself most often.
TEST_CASE("nothing is lost between threads") {
  MemoryBudget budget(MemoryLimits{.working_set = 0, .buffer = 0, .machine = 0});
  constexpr std::uint64_t kAll = 4 * 50'000;
  const std::string label = "turn";
  for (int round = 0; round < 5; ++round) {
    repeat_on_threads([&] { budget.take_allocated(3, label); });
    REQUIRE_MESSAGE(budget.allocated() == 3 * kAll, "allocated: ", std::to_string(budget.allocated()));
    repeat_on_threads([&] { budget.take_wrapped(5, label); });
    REQUIRE_MESSAGE(budget.wrapped() == 5 * kAll, "wrapped: ", std::to_string(budget.wrapped()));
    repeat_on_threads([&] { budget.release_allocated(3); });
    REQUIRE_MESSAGE(budget.allocated() == 0, "allocated: ", std::to_string(budget.allocated()));
    repeat_on_threads([&] { budget.release_wrapped(5); });
    REQUIRE_MESSAGE(budget.wrapped() == 0, "wrapped: ", std::to_string(budget.wrapped()));
  }
}

TEST_CASE("budget of many threads") {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 100, .buffer = 0, .machine = 0});
  std::atomic<int> refused = 0;
  std::atomic<int> held = 0;  // by shares while they exist, so never more than the budget has given
  std::atomic<bool> exceeded = false;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        try {
          const BudgetShare share(budget, 30, round % 2 == 0, "share");
          if ((held += 30) > 100) exceeded = true;
          std::this_thread::yield();
          held -= 30;
        } catch (const Error&) {
          ++refused;
        }
      }
    });
  }
  for (std::jthread& thread : threads) thread.join();
  REQUIRE_MESSAGE((!exceeded && budget->allocated() == 0 && budget->wrapped() == 0), "never more than there is");
}

TEST_CASE("heartbeat") {
  std::atomic<int> beats = 0;
  {
    Heartbeat heartbeat([&] { ++beats; }, 2ms, 40ms);
    std::this_thread::sleep_for(10ms);
    REQUIRE_MESSAGE(beats == 0, "no beat before activity");
    heartbeat.touch();
    for (int i = 0; i < 500 && beats < 3; ++i) std::this_thread::sleep_for(1ms);
    REQUIRE_MESSAGE(beats >= 3, "beats while active");
    std::this_thread::sleep_for(120ms);
    const int resting = beats;
    std::this_thread::sleep_for(30ms);
    REQUIRE_MESSAGE(beats == resting, "no beat after the activity has lingered");
    heartbeat.touch();
    for (int i = 0; i < 500 && beats == resting; ++i) std::this_thread::sleep_for(1ms);
    REQUIRE_MESSAGE(beats > resting, "activity wakes it");
  }
  const int ended = beats;
  std::this_thread::sleep_for(10ms);
  REQUIRE_MESSAGE(beats == ended, "no beat after its end");
}

// A forked child has no copy of the thread; what it destroys must not wait for it.
TEST_CASE("heartbeat in a forked child") {
  auto heartbeat = std::make_unique<Heartbeat>([] {}, 1ms, 10s);
  heartbeat->touch();
  std::this_thread::sleep_for(5ms);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends a child that hangs
    heartbeat.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  REQUIRE_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "the child ended by itself");
}

}  // namespace
}  // namespace lily::device::metal
