// tests/cpp/kernel_test.h -- what the kernel tests share: instruction sets, random data, guarded arrays, checks.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/isa/isa.h"

namespace lily::test {

struct Isa {
  std::string name;
  bool fused;  // has fused multiply-add: agrees bit for bit with the others that have
  cpu::KernelTable table;
};

// The float kernels that this processor can run.
inline std::vector<Isa> float_isas() {
  std::vector<Isa> result;
  const auto add = [&](const char* name, bool fused, void (*fill)(cpu::KernelTable&)) {
    result.push_back({name, fused, {}});
    fill(result.back().table);
  };
#if defined(__x86_64__)
  add("portable", false, cpu::fill_float_portable);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add("avx2", true, cpu::fill_float_avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni")) {
    add("avx512", true, cpu::fill_float_avx512);
  }
#elif defined(__aarch64__)
  add("portable", true, cpu::fill_float_portable);
  add("neon", true, cpu::fill_float_neon);
#endif
  return result;
}

// An array that ends where an unreadable page begins and starts after bytes that must not change.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t size) : size_(size) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t used = (size * sizeof(T) + margin + page - 1) / page * page;
    bytes_ = used + page;
    void* map = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) throw std::runtime_error("mmap failed");
    map_ = static_cast<std::byte*>(map);
    if (mprotect(map_ + used, page, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
    data_ = reinterpret_cast<T*>(map_ + used - size * sizeof(T));
    std::memset(reinterpret_cast<std::byte*>(data_) - margin, 0xa5, margin);
  }
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size()) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size() * sizeof(T));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(map_, bytes_); }

  T* data() { return data_; }
  T& operator[](std::size_t index) { return data_[index]; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::vector<T> values() const { return std::vector<T>(data_, data_ + size_); }
  [[nodiscard]] bool margin_intact() const {
    for (std::size_t i = 1; i <= margin; ++i) {
      if (reinterpret_cast<const unsigned char*>(data_)[-static_cast<std::ptrdiff_t>(i)] != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t margin = 128;
  std::size_t size_;
  std::size_t bytes_ = 0;
  std::byte* map_ = nullptr;
  T* data_ = nullptr;
};

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  float normal(float scale = 1.0F) { return std::normal_distribution<float>(0.0F, scale)(engine_); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
  std::vector<float> normals(std::size_t size, float scale = 1.0F) {
    std::vector<float> result(size);
    for (auto& value : result) value = normal(scale);
    return result;
  }
  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

// Collects failures of one instruction set and the results that fused instruction sets must share.
class Checker {
 public:
  explicit Checker(std::string isa) : isa_(std::move(isa)) {}

  void expect(bool condition, const std::string& what) {
    ++checks_;
    if (condition) return;
    if (++failures_ <= 20) std::printf("FAIL [%s] %s\n", isa_.c_str(), what.c_str());
  }

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
  void same_bits(const std::vector<T>& a, const std::vector<T>& b, const std::string& what) {
    expect(a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0), what);
  }

  void record(std::span<const float> values) { recorded_.insert(recorded_.end(), values.begin(), values.end()); }
  [[nodiscard]] const std::vector<float>& recorded() const { return recorded_; }
  [[nodiscard]] int failures() const { return failures_; }
  [[nodiscard]] int checks() const { return checks_; }

 private:
  std::string isa_;
  int failures_ = 0;
  int checks_ = 0;
  std::vector<float> recorded_;
};

// Runs the tests on every instruction set; those with fused multiply-add must record the same bits.
inline int run_on_all(void (*tests)(const cpu::KernelTable&, Checker&)) {
  int failures = 0;
  std::vector<float> fused;
  for (const Isa& isa : float_isas()) {
    Checker checker(isa.name);
    tests(isa.table, checker);
    if (isa.fused && fused.empty()) fused = checker.recorded();
    if (isa.fused) checker.same_bits(fused, checker.recorded(), "results differ from another fused instruction set");
    std::printf("%s: %d checks, %d failed\n", isa.name.c_str(), checker.checks(), checker.failures());
    failures += checker.failures();
  }
  return failures == 0 ? 0 : 1;
}

}  // namespace lily::test
