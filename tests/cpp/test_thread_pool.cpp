// tests/cpp/test_thread_pool.cpp -- loops over worker threads: every index once, failures, and floating-point modes.
#include <doctest/doctest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cpu/thread_pool.h"

namespace lily::test {
namespace {

constexpr std::int64_t kSizes[] = {1, 2, 3, 5};
constexpr std::int64_t kCounts[] = {0, 1, 2, 3, 4, 5, 6, 64, 1001};

// Waits until `workers` threads are here, so that each of them takes part; false after ten seconds.
bool meet(std::atomic<std::int64_t>& arrived, std::int64_t workers) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ++arrived;
  while (arrived.load() < workers) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_CASE("each index runs once, by a worker of the pool") {
  for (const std::int64_t size : kSizes) {
    cpu::ThreadPool pool(size);
    for (const std::int64_t count : kCounts) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
      std::atomic<int> strangers = 0;
      pool.parallel_for(count, [&](std::int64_t index, std::int64_t worker) {
        if (index < 0 || index >= count || worker < 0 || worker >= size) {
          ++strangers;
        } else {
          ++runs[static_cast<std::size_t>(index)];
        }
      });
      CHECK(strangers == 0);
      for (const auto& number : runs) CHECK(number == 1);
    }
  }
}

TEST_CASE("a failure is raised by its own loop and by no other") {
  for (const std::int64_t size : kSizes) {
    cpu::ThreadPool pool(size);
    for (const std::int64_t count : kCounts) {
      for (const std::int64_t bad : {std::int64_t{0}, count / 2, count - 1}) {
        if (bad < 0 || bad >= count) continue;
        std::string told;
        try {
          pool.parallel_for(count, [&](std::int64_t index, std::int64_t) {
            if (index == bad) throw std::runtime_error("index " + std::to_string(bad));
          });
        } catch (const std::runtime_error& error) {
          told = error.what();
        }
        CHECK(told == "index " + std::to_string(bad));
        for (const std::int64_t next : {std::int64_t{1}, count, std::int64_t{100}}) {
          std::atomic<std::int64_t> runs = 0;
          CHECK_NOTHROW(pool.parallel_for(next, [&](std::int64_t, std::int64_t) { ++runs; }));
          CHECK(runs == next);
        }
      }
    }
  }
}

TEST_CASE("workers compute in the default mode, whatever that of the thread that makes the pool") {
  constexpr std::int64_t size = 3;
  const int before = std::fegetround();
  REQUIRE(std::fesetround(FE_UPWARD) == 0);
  cpu::ThreadPool pool(size);
  std::fesetround(before);
  int modes[size] = {-1, -1, -1};
  std::atomic<std::int64_t> arrived = 0;
  std::atomic<bool> met = true;
  pool.parallel_for(size, [&](std::int64_t, std::int64_t worker) {
    modes[worker] = std::fegetround();
    if (!meet(arrived, size)) met = false;
  });
  REQUIRE(met);
  for (const int mode : modes) CHECK(mode == FE_TONEAREST);
}

}  // namespace
}  // namespace lily::test
