// tests/cpp/kernel_test.h -- what the kernel tests share: instruction sets, random data, guarded arrays.
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

}  // namespace lily::test
