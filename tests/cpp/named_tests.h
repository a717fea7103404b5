// tests/cpp/named_tests.h -- tests that throw when something is not as expected, run by name.
#pragma once

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lily {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Runs all of them; the exit code of the program.
inline int run_tests(const std::vector<std::pair<const char*, void (*)()>>& tests) {
  int failures = 0;
  for (const auto& [name, test] : tests) {
    try {
      test();
    } catch (const std::exception& error) {
      std::printf("FAILED %s: %s\n", name, error.what());
      std::fflush(stdout);  // should the next test hang or end the process, this has been said
      ++failures;
    }
  }
  std::printf("%d of %zu tests failed\n", failures, tests.size());
  return failures == 0 ? 0 : 1;
}

}  // namespace lily
