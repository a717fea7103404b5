// tests/cpp/matmul_problem.h -- random matrices, activations and the outputs that the arithmetic contract demands of
// their product. Arrays lie right before a page that must not be touched: reading or writing past their end ends the
// program.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/dispatch.h"

namespace lily::test {

using cpu::ColumnOrder;
using cpu::KernelTable;
using cpu::QuantizedRows;

using Random = std::mt19937_64;
constexpr std::uint64_t kSeed = 20240607;

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

// Bytes whose end, but for `pad` of them, is the end of the accessible memory.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size, std::size_t pad = 0, std::size_t alignment = 1) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t usable = (size + pad + alignment + page - 1) / page * page;
    mapped_ = usable + page;
    void* base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::runtime_error("mmap failed");
    base_ = static_cast<std::byte*>(base);
    if (mprotect(base_ + usable, page, PROT_NONE) != 0) throw std::runtime_error("mprotect failed");
    data_ = base_ + (usable - size - pad) / alignment * alignment;
  }
  ~GuardedBytes() { munmap(base_, mapped_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  template <class T>
  [[nodiscard]] T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t mapped_ = 0;
};

inline std::uint16_t to_float16(float value) {  // normal values only, truncated
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | (((bits >> 23 & 0xffU) - 112U) << 10) |
                                    (bits >> 13 & 0x3ffU));
}

inline void store_element(std::byte* base, ElementType type, std::int64_t index, float value) {
  if (type == ElementType::float32) {
    std::memcpy(base + 4 * index, &value, 4);
    return;
  }
  const std::uint16_t bits = type == ElementType::bfloat16 ? float_to_bfloat16(value) : to_float16(value);
  std::memcpy(base + 2 * index, &bits, 2);
}

inline const char* name_of(ElementType type) {
  return type == ElementType::bfloat16 ? "bfloat16" : type == ElementType::float16 ? "float16" : "float32";
}

inline float random_value(Random& random) {  // both signs, three decades, a normal float16
  const double magnitude = std::exp2(std::uniform_real_distribution<double>(-9.0, 1.0)(random));
  return static_cast<float>(random() % 2 == 0 ? magnitude : -magnitude);
}

struct AffineCase {
  int bits;
  std::int32_t group_size;
  std::int64_t columns;
  std::int64_t rows;
  std::int64_t inputs;
  ElementType type;
  bool gather;
  std::size_t pad;

  [[nodiscard]] std::string text() const {
    return "affine" + std::to_string(bits) + " group " + std::to_string(group_size) + " " + std::to_string(rows) + "x" +
           std::to_string(columns) + " inputs " + std::to_string(inputs) + " " + name_of(type) +
           (gather ? " gathered" : "") + " pad " + std::to_string(pad);
  }
};

// A random affine matrix, its activations, and the outputs that the contract demands.
class AffineProblem {
 public:
  AffineProblem(const AffineCase& c, Random& random)
      : case_(c),
        groups_(c.columns / c.group_size),
        stored_(c.inputs + 3),
        stride_(cpu::row_stride(c.columns)),
        weight_(bytes(c.rows * c.columns * c.bits / 8), c.pad),
        scales_(bytes(c.rows * groups_ * element_bytes(c.type)), c.pad),
        biases_(bytes(c.rows * groups_ * element_bytes(c.type)), c.pad),
        high_(bytes((stored_ - 1) * stride_ + c.columns), 0, 64),
        low_(bytes((stored_ - 1) * stride_ + c.columns), 0, 64),
        x_scales_(bytes(stored_ * groups_ * 4), 0, 4),
        x_sums_(bytes(stored_ * groups_ * 4), 0, 4),
        x_(static_cast<std::size_t>(stored_ * c.columns)) {
    for (std::int64_t i = 0; i < c.rows * c.columns * c.bits / 8; ++i) {
      weight_.data()[i] = static_cast<std::byte>(random() % 8 == 0 ? 0xff : random());
    }
    for (std::int64_t i = 0; i < c.rows * groups_; ++i) {
      store_element(scales_.data(), c.type, i, random_value(random));
      store_element(biases_.data(), c.type, i, random_value(random));
    }
    for (float& value : x_) value = random_value(random);
    matrix_ = {c.bits == 4 ? MatrixFormat::affine4 : MatrixFormat::affine8,
               c.type,
               c.group_size,
               c.rows,
               c.columns,
               weight_.data(),
               scales_.data(),
               biases_.data()};
    rows_ = {stored_,
             c.columns,
             stride_,
             c.group_size,
             c.bits == 4 ? ColumnOrder::nibble : ColumnOrder::natural,
             high_.as<std::int8_t>(),
             low_.as<std::int8_t>(),
             x_scales_.as<float>(),
             x_sums_.as<float>()};
    if (c.gather) {
      for (std::int64_t m = 0; m < c.inputs; ++m)
        index_.push_back(static_cast<std::int32_t>(pick(random, 0, stored_ - 1)));
    }
  }

  void quantize(const KernelTable& kernels) {
    for (std::int64_t m = 0; m < stored_; ++m) {
      kernels.quantize_row(x_.data() + m * case_.columns, case_.columns, case_.group_size, rows_.order,
                           rows_.high + m * stride_, rows_.low + m * stride_, rows_.scales + m * groups_,
                           rows_.sums + m * groups_);
    }
  }

  // Fills expected() from the quantized rows, and checks it against float64 of the unrounded activations.
  void make_expected() {
    expected_.assign(static_cast<std::size_t>(case_.inputs * case_.rows), 0.0F);
    for (std::int64_t m = 0; m < case_.inputs; ++m) {
      for (std::int64_t n = 0; n < case_.rows; ++n)
        expected_[static_cast<std::size_t>(m * case_.rows + n)] = expect(input(m), n);
    }
  }

  [[nodiscard]] const Matrix& matrix() const { return matrix_; }
  [[nodiscard]] const QuantizedRows& rows() const { return rows_; }
  [[nodiscard]] const std::vector<float>& x() const { return x_; }
  [[nodiscard]] float expected(std::int64_t m, std::int64_t n) const {
    return expected_[static_cast<std::size_t>(m * case_.rows + n)];
  }
  [[nodiscard]] const std::int32_t* index() const { return index_.empty() ? nullptr : index_.data(); }
  [[nodiscard]] std::int64_t input(std::int64_t m) const {
    return index_.empty() ? m : index_[static_cast<std::size_t>(m)];
  }
  [[nodiscard]] std::int64_t stored() const { return stored_; }

  // Column k's place in high and low.
  [[nodiscard]] std::int64_t place(std::int64_t k) const {
    return case_.bits == 8 ? k : k / 8 * 8 + k % 8 / 2 + 4 * (k % 2);
  }
  [[nodiscard]] std::int64_t quantized(std::int64_t row, std::int64_t k) const {
    const std::int64_t at = row * stride_ + place(k);
    return 256 * rows_.high[at] + rows_.low[at];
  }

 private:
  static std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count); }

  [[nodiscard]] std::int64_t code(std::int64_t n, std::int64_t k) const {
    const auto byte = static_cast<std::uint8_t>(weight_.data()[(n * case_.columns + k) * case_.bits / 8]);
    return case_.bits == 8 ? byte : k % 2 == 0 ? byte & 15 : byte >> 4;
  }

  [[nodiscard]] float expect(std::int64_t row, std::int64_t n) const {
    float y = 0.0F;
    double exact = 0.0;
    double size = 0.0;
    for (std::int64_t g = 0; g < groups_; ++g) {
      const float scale = load_element(scales_.data(), case_.type, n * groups_ + g);
      const float bias = load_element(biases_.data(), case_.type, n * groups_ + g);
      std::int64_t sum = 0;
      double largest = 0.0;
      for (std::int64_t k = g * case_.group_size; k < (g + 1) * case_.group_size; ++k) {
        const double x = x_[static_cast<std::size_t>(row * case_.columns + k)];
        sum += code(n, k) * quantized(row, k);
        exact += (static_cast<double>(scale) * static_cast<double>(code(n, k)) + bias) * x;
        largest = std::max(largest, std::abs(x));
      }
      size += largest * case_.group_size * (std::abs(scale) * (1 << case_.bits) + std::abs(bias));
      y = std::fma(static_cast<float>(sum), scale * rows_.scales[row * groups_ + g], y);
      y = std::fma(bias, rows_.sums[row * groups_ + g], y);
    }
    CHECK_MESSAGE(std::abs(y - exact) <= size * std::exp2(-15), case_.text(), ": the contract's value against float64");
    return y;
  }

  AffineCase case_;
  std::int64_t groups_;
  std::int64_t stored_;
  std::int64_t stride_;  // bytes
  GuardedBytes weight_, scales_, biases_, high_, low_, x_scales_, x_sums_;
  std::vector<float> x_;
  std::vector<std::int32_t> index_;
  std::vector<float> expected_;
  Matrix matrix_;
  QuantizedRows rows_;
};

// The kernels of every instruction set that runs here, the best first.
inline std::vector<const KernelTable*> all_tables() {
  std::vector<const KernelTable*> tables;
  for (const std::string& name : cpu::available_isas()) tables.push_back(&cpu::select_kernels(name));
  return tables;
}

}  // namespace lily::test
