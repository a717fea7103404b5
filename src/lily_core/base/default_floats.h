// base/default_floats.h -- IEEE arithmetic for as long as an object lives, whatever mode the rest of the program has
// set.
//
// Rounding, flushing of subnormal numbers to zero and traps are the thread's own. Libraries built with -ffast-math
// switch flushing on when they are imported, and threads inherit it: without this, results would depend on who
// computes.
#pragma once

#include <cfenv>

namespace lily {

class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace lily
