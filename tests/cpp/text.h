// tests/cpp/text.h -- what tests look for in messages, and the messages of errors.
#pragma once

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

#include "base/error.h"

namespace lily {

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What an error of this kind says; `run` must throw one.
template <class Run>
std::string error_of(ErrorKind kind, Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    REQUIRE_MESSAGE(error.kind() == kind, "an error of another kind: ", error.what());
    return error.what();
  }
  throw std::runtime_error("no error");
}

}  // namespace lily
