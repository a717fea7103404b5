// tests/cpp/checker.h -- checks of kernels, which say on which instruction set they failed.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernel_test.h"

namespace lily::test {

// Also keeps the results that the instruction sets with fused multiply-add must share.
class Checker {
 public:
  explicit Checker(std::string isa) : isa_(std::move(isa)) {}

  void expect(bool condition, const std::string& what) const { CHECK_MESSAGE(condition, "[", isa_, "] ", what); }

  // |got - want| <= tolerance * (|want| + floor)
  void near(std::span<const float> got, std::span<const double> want, double tolerance, double floor,
            const std::string& what) {
    record(got);
    double worst = 0.0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double error = std::fabs(static_cast<double>(got[i]) - want[i]) / (std::fabs(want[i]) + floor);
      worst = error <= worst ? worst : error;  // NaN counts
    }
    expect(got.size() == want.size() && worst <= tolerance,
           what + ": error " + std::to_string(worst / tolerance) + " x tolerance");
  }

  template <class T>
  void same_bits(const std::vector<T>& a, const std::vector<T>& b, const std::string& what) const {
    expect(a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0), what);
  }

  void record(std::span<const float> values) { recorded_.insert(recorded_.end(), values.begin(), values.end()); }
  [[nodiscard]] const std::vector<float>& recorded() const { return recorded_; }

 private:
  std::string isa_;
  std::vector<float> recorded_;
};

// Runs a test on every instruction set; those with fused multiply-add must record the same bits.
inline void on_every_isa(void (*test)(const cpu::KernelTable&, Checker&)) {
  std::vector<float> fused;
  for (const Isa& isa : float_isas()) {
    Checker checker(isa.name);
    test(isa.table, checker);
    if (isa.fused && fused.empty()) fused = checker.recorded();
    if (isa.fused) checker.same_bits(fused, checker.recorded(), "results differ from another fused instruction set");
  }
}

}  // namespace lily::test
