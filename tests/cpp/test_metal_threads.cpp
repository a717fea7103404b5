// tests/cpp/test_metal_threads.cpp -- work that is shared by threads, and things that are made once.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "device/metal/once_map.h"
#include "device/metal/run_on_threads.h"

namespace lily::device::metal {
namespace {

using namespace std::chrono_literals;

TEST_CASE("work on threads") {
  for (const std::size_t threads : {1UL, 3UL, 64UL}) {
    std::vector<std::atomic<int>> runs(17);
    std::vector<std::size_t> told;
    const std::thread::id here = std::this_thread::get_id();
    bool elsewhere = false;
    run_on_threads(
        runs.size(), threads, [&](std::size_t i) { ++runs[i]; },
        [&](std::size_t done) {
          told.push_back(done);
          elsewhere = elsewhere || std::this_thread::get_id() != here;
        });
    for (const auto& count : runs) REQUIRE_MESSAGE(count == 1, "each once");
    REQUIRE_MESSAGE((!told.empty() && told.back() == 17 && !elsewhere), "progress to the end, on the caller's thread");
    for (std::size_t i = 1; i < told.size(); ++i) REQUIRE_MESSAGE(told[i] > told[i - 1], "progress grows");
  }
  run_on_threads(0, 4, [](std::size_t) { throw std::runtime_error("never"); }, nullptr);
}

TEST_CASE("failing work on threads") {
  std::atomic<std::size_t> started = 0;
  const auto message = [](const std::function<void()>& run) {
    try {
      run();
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string of_work = message([&] {
    run_on_threads(
        1000, 3,
        [&](std::size_t i) {
          ++started;
          if (i == 5) throw std::runtime_error("five");
          std::this_thread::sleep_for(100us);
        },
        nullptr);
  });
  REQUIRE_MESSAGE((of_work == "five" && started < 1000), "the first exception ends it");
  started = 0;
  const std::string of_progress = message([&] {
    run_on_threads(
        1000, 3,
        [&](std::size_t) {
          ++started;
          std::this_thread::sleep_for(100us);
        },
        [](std::size_t done) {
          if (done >= 4) throw std::runtime_error("interrupted");
        });
  });
  REQUIRE_MESSAGE((of_progress == "interrupted" && started < 1000), "so does one of the caller's");
}

TEST_CASE("things are made once") {
  OnceMap<int> map;
  std::atomic<int> made = 0;
  std::atomic<bool> fails = true;
  const auto find = [&](const std::string& name) -> const int& {
    return map.find_or_make(name, [&] {
      if (fails) throw std::runtime_error("not yet");
      ++made;
      std::this_thread::sleep_for(1ms);
      return std::make_unique<int>(static_cast<int>(name.size()));
    });
  };
  bool thrown = false;
  try {
    find("abc");
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  fails = false;
  REQUIRE_MESSAGE((thrown && find("abc") == 3), "who asks again tries again");
  const int* first = &find("abc");
  run_on_threads(40, 8, [&](std::size_t i) { static_cast<void>(find(std::string(1 + i % 5, 'x'))); }, nullptr);
  REQUIRE_MESSAGE((made == 6 && first == &find("abc")), "each once, and it stays where it is");
}

}  // namespace
}  // namespace lily::device::metal
