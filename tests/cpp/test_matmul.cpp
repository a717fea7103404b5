// tests/cpp/test_matmul.cpp -- the matrix kernels of every instruction set that runs here, against the arithmetic
// contract of cpu/kernels.h (bit for bit) and against float64.
//
// Weights, scales, activations and scratch lie right before a page that must not be touched, so reading or writing
// past their end ends the program. Exit status: 0 when every check held.
//
//   test_matmul [seed [isa ...]]     with names: those instruction sets, and no others, must run here, best first
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/dispatch.h"
#include "cpu/matmul/portable_fma.h"

namespace {

using lily::ElementType;
using lily::Matrix;
using lily::MatrixFormat;
using lily::cpu::ColumnOrder;
using lily::cpu::KernelTable;
using lily::cpu::MatmulArgs;
using lily::cpu::QuantizedRows;

int failures = 0;
long checks = 0;

void check(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  if (++failures <= 20) std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

using Random = std::mt19937_64;

std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {
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

std::uint16_t to_float16(float value) {  // normal values only, truncated
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | (((bits >> 23 & 0xffU) - 112U) << 10) |
                                    (bits >> 13 & 0x3ffU));
}

void store_element(std::byte* base, ElementType type, std::int64_t index, float value) {
  if (type == ElementType::float32) {
    std::memcpy(base + 4 * index, &value, 4);
    return;
  }
  const std::uint16_t bits = type == ElementType::bfloat16 ? lily::float_to_bfloat16(value) : to_float16(value);
  std::memcpy(base + 2 * index, &bits, 2);
}

const char* name_of(ElementType type) {
  return type == ElementType::bfloat16 ? "bfloat16" : type == ElementType::float16 ? "float16" : "float32";
}

float random_value(Random& random) {  // both signs, three decades, a normal float16
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
        stride_(lily::cpu::row_stride(c.columns)),
        weight_(bytes(c.rows * c.columns * c.bits / 8), c.pad),
        scales_(bytes(c.rows * groups_ * lily::element_bytes(c.type)), c.pad),
        biases_(bytes(c.rows * groups_ * lily::element_bytes(c.type)), c.pad),
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
      const float scale = lily::load_element(scales_.data(), case_.type, n * groups_ + g);
      const float bias = lily::load_element(biases_.data(), case_.type, n * groups_ + g);
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
    check(std::abs(y - exact) <= size * std::exp2(-15), case_.text() + ": the contract's value against float64");
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

// Half a step of the largest magnitude's 32512, and the rounding of float32.
constexpr double kGroupError = 1.0 / 65024.0 + 0x1p-22;

void check_quantized(const AffineProblem& problem, const std::string& what) {
  const QuantizedRows& rows = problem.rows();
  for (std::int64_t m = 0; m < problem.stored(); ++m) {
    for (std::int64_t g = 0; g < rows.groups(); ++g) {
      double largest = 0.0;
      double sum = 0.0;
      double error = 0.0;
      std::int64_t largest_q = 0;
      for (std::int64_t k = g * rows.group_size; k < (g + 1) * rows.group_size; ++k) {
        const double x = problem.x()[static_cast<std::size_t>(m * rows.columns + k)];
        const std::int64_t q = problem.quantized(m, k);
        largest = std::max(largest, std::abs(x));
        largest_q = std::max(largest_q, std::abs(q));
        sum += x;
        error = std::max(
            error, std::abs(static_cast<double>(rows.scales[m * rows.groups() + g]) * static_cast<double>(q) - x));
      }
      check(largest_q == 32512, what + ": the largest magnitude becomes 32512");
      check(error <= largest * kGroupError, what + ": rounding error of a group");
      check(std::abs(rows.sums[m * rows.groups() + g] - sum) <= largest * rows.group_size * 1e-6,
            what + ": sum of a group");
    }
  }
}

constexpr float kUntouched = -12345.0F;

// Runs the kernel over the rows [begin, end) and the inputs [first, first + count); checks every float of the output.
template <class Expected>
void run_slice(const std::string& what, void (*kernel)(const MatmulArgs&), MatmulArgs args, std::int64_t first,
               std::int64_t count, const Expected& expected) {
  const std::int64_t rows = args.weight->rows;
  args.out_stride = rows + 5;
  std::vector<float> out(static_cast<std::size_t>((count + 1) * args.out_stride), kUntouched);
  args.out = out.data();
  args.row_count = count;
  kernel(args);
  bool right = true;
  bool untouched = true;
  for (std::int64_t m = 0; m <= count; ++m) {
    for (std::int64_t n = 0; n < args.out_stride; ++n) {
      const float value = out[static_cast<std::size_t>(m * args.out_stride + n)];
      if (m < count && n >= args.row_begin && n < args.row_end) {
        right = right && std::bit_cast<std::uint32_t>(value) == std::bit_cast<std::uint32_t>(expected(first + m, n));
      } else {
        untouched = untouched && value == kUntouched;
      }
    }
  }
  const std::string where = what + " rows " + std::to_string(args.row_begin) + ".." + std::to_string(args.row_end) +
                            " inputs " + std::to_string(first) + "+" + std::to_string(count);
  check(right, where + ": bits");
  check(untouched, where + ": wrote outside its outputs");
}

// All at once, then a few random ranges of rows with random runs of inputs, then single inputs.
template <class Run>
void for_slices(std::int64_t rows, std::int64_t inputs, Random& random, const Run& run) {
  run(0, rows, 0, inputs);
  const std::int64_t tiles = (rows + lily::cpu::kRowTile - 1) / lily::cpu::kRowTile;
  for (int trial = 0; trial < 6; ++trial) {
    const std::int64_t begin = pick(random, 0, tiles - 1);
    const std::int64_t end = pick(random, begin + 1, tiles);
    const std::int64_t first = pick(random, 0, inputs - 1);
    const std::int64_t count = trial < 2 ? 1 : pick(random, 1, inputs - first);
    run(begin * lily::cpu::kRowTile, std::min(end * lily::cpu::kRowTile, rows), first, count);
  }
}

void check_affine(const AffineCase& c, const std::vector<const KernelTable*>& tables, Random& random) {
  AffineProblem problem(c, random);
  problem.quantize(*tables.back());
  check_quantized(problem, c.text());
  problem.make_expected();
  const QuantizedRows& rows = problem.rows();
  const auto size = static_cast<std::size_t>((rows.rows - 1) * rows.stride + rows.columns);
  const std::vector<std::int8_t> high(rows.high, rows.high + size);
  const std::vector<std::int8_t> low(rows.low, rows.low + size);
  const std::vector<float> scales(rows.scales, rows.scales + rows.rows * rows.groups());
  const std::vector<float> sums(rows.sums, rows.sums + rows.rows * rows.groups());
  const Matrix plain{MatrixFormat::plain, c.type, 0, 3, 40, problem.matrix().weight, nullptr, nullptr};
  for (const KernelTable* table : tables) {
    const std::string what = std::string(table->name) + " " + c.text();
    problem.quantize(*table);
    check(std::ranges::equal(high, std::span(rows.high, size)) && std::ranges::equal(low, std::span(rows.low, size)) &&
              std::ranges::equal(scales, std::span(rows.scales, scales.size())) &&
              std::ranges::equal(sums, std::span(rows.sums, sums.size())),
          what + ": quantize_row's bits");
    const GuardedBytes scratch(table->matmul_scratch_bytes(c.columns), 0, 64);
    for_slices(c.rows, c.inputs, random,
               [&](std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count) {
                 QuantizedRows slice = rows;
                 MatmulArgs args;
                 args.weight = &problem.matrix();
                 args.row_begin = begin;
                 args.row_end = end;
                 args.x = &slice;
                 args.scratch = scratch.data();
                 std::vector<std::int32_t> index;
                 for (std::int64_t m = 0; m < count; ++m)
                   index.push_back(static_cast<std::int32_t>(problem.input(first + m)));
                 if (problem.index() != nullptr || first != 0) args.row_index = index.data();
                 // What is named as read next may be anything, and at its end; it must not change a bit.
                 const Matrix* const following[] = {nullptr, &problem.matrix(), &plain};
                 args.next_weight = following[random() % 3];
                 if (args.next_weight != nullptr) args.next_row = pick(random, 0, args.next_weight->rows);
                 run_slice(what, table->matmul_affine, args, first, count,
                           [&](std::int64_t m, std::int64_t n) { return problem.expected(m, n); });
               });
  }
}

void check_affine_grid(const std::vector<const KernelTable*>& tables, Random& random) {
  const std::int64_t row_counts[] = {1, 5, 15, 16, 17, 31, 33, 48, 70};
  const std::int64_t input_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 23, 32, 37};
  const ElementType types[] = {ElementType::bfloat16, ElementType::float16, ElementType::float32};
  std::size_t turn = 0;
  for (const int bits : {4, 8}) {
    for (const std::int32_t group_size : {32, 64, 128}) {
      for (const std::int64_t groups : {1, 2, 3, 5, 7, 8, 9, 16, 17}) {
        for (int repeat = 0; repeat < 3; ++repeat, ++turn) {
          check_affine({bits, group_size, groups * group_size, row_counts[turn % std::size(row_counts)],
                        input_counts[turn % std::size(input_counts)], types[turn % std::size(types)], random() % 2 == 0,
                        turn % 8},
                       tables, random);
        }
      }
    }
  }
  for (std::int64_t inputs = 1; inputs <= 37; ++inputs) {
    check_affine({inputs % 2 == 0 ? 4 : 8, 64, 192, pick(random, 1, 70), inputs, types[inputs % 3], inputs % 3 != 0,
                  static_cast<std::size_t>(inputs % 8)},
                 tables, random);
  }
  check_affine({4, 64, 2048, 64, 19, ElementType::bfloat16, true, 1}, tables, random);
  check_affine({4, 64, 512, 48, 70, ElementType::bfloat16, false, 3}, tables, random);
  // As many inputs as kernels hold at once, and one more.
  for (const std::int64_t inputs : {64, 65, 80, 81, 129, 161}) {
    check_affine({inputs % 2 == 0 ? 4 : 8, 32, 96, 34, inputs, types[inputs % 3], inputs > 80, 1}, tables, random);
  }
}

// float64 reference; the bits of one input and one row range must be those of any other.
void check_plain(ElementType type, std::int64_t rows, std::int64_t columns, std::int64_t inputs, std::size_t pad,
                 const std::vector<const KernelTable*>& tables, Random& random) {
  const GuardedBytes weight(static_cast<std::size_t>(rows * columns * lily::element_bytes(type)), pad);
  for (std::int64_t i = 0; i < rows * columns; ++i) store_element(weight.data(), type, i, random_value(random));
  const std::int64_t stride = columns + 3;
  const GuardedBytes x_bytes(static_cast<std::size_t>(inputs * stride - 3) * 4, 0, 4);
  auto* x = x_bytes.as<float>();
  for (std::int64_t i = 0; i < inputs * stride - 3; ++i) x[i] = random_value(random);
  std::vector<std::int32_t> index;
  for (std::int64_t m = 0; m < inputs; ++m) index.push_back(static_cast<std::int32_t>(pick(random, 0, inputs - 1)));
  const Matrix matrix{MatrixFormat::plain, type, 0, rows, columns, weight.data(), nullptr, nullptr};
  for (const KernelTable* table : tables) {
    const std::string what = std::string(table->name) + " plain " + name_of(type) + " " + std::to_string(rows) + "x" +
                             std::to_string(columns) + " inputs " + std::to_string(inputs);
    const GuardedBytes scratch(table->matmul_scratch_bytes(columns), 0, 64);
    MatmulArgs args;
    args.weight = &matrix;
    args.x_plain = x;
    args.x_stride = stride;
    args.scratch = scratch.data();
    args.out_stride = rows;
    std::vector<float> all(static_cast<std::size_t>(inputs * rows));
    args.row_index = index.data();
    args.row_count = inputs;
    args.row_end = rows;
    args.out = all.data();
    table->matmul_plain(args);
    for (std::int64_t m = 0; m < inputs; ++m) {
      for (std::int64_t n = 0; n < rows; ++n) {
        double exact = 0.0;
        double size = 0.0;
        for (std::int64_t k = 0; k < columns; ++k) {
          const double product = static_cast<double>(lily::load_element(weight.data(), type, n * columns + k)) *
                                 x[index[static_cast<std::size_t>(m)] * stride + k];
          exact += product;
          size += std::abs(product);
        }
        check(std::abs(all[static_cast<std::size_t>(m * rows + n)] - exact) <=
                  size * static_cast<double>(columns / 16 + 6) * std::exp2(-24),
              what + ": against float64");
      }
    }
    for_slices(rows, inputs, random, [&](std::int64_t begin, std::int64_t end, std::int64_t first, std::int64_t count) {
      args.row_begin = begin;
      args.row_end = end;
      args.row_index = index.data() + first;
      run_slice(what, table->matmul_plain, args, first, count,
                [&](std::int64_t m, std::int64_t n) { return all[static_cast<std::size_t>(m * rows + n)]; });
    });
  }
}

void check_plain_grid(const std::vector<const KernelTable*>& tables, Random& random) {
  for (const ElementType type : {ElementType::bfloat16, ElementType::float16, ElementType::float32}) {
    std::size_t pad = 0;
    for (const std::int64_t columns : {1, 3, 15, 16, 17, 31, 33, 64, 100, 256}) {
      check_plain(type, pick(random, 1, 70), columns, pick(random, 1, 13), pad++ % 8, tables, random);
    }
  }
}

// Values that are not finite, all zero, tiny, and as large as can be.
void check_extreme_activations(const std::vector<const KernelTable*>& tables, Random& random) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float largest = std::numeric_limits<float>::max();
  for (const KernelTable* table : tables) {
    for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::nibble}) {
      const std::string what = std::string(table->name) + " quantize_row ";
      std::vector<float> x(7 * 32, 0.0F);
      for (float& value : x) value = random_value(random);
      x[5] = infinity;
      x[32 + 31] = -infinity;
      x[64 + 17] = std::numeric_limits<float>::quiet_NaN();
      std::fill(x.begin() + 96, x.begin() + 128, -0.0F);
      for (int i = 128; i < 160; ++i) x[static_cast<std::size_t>(i)] = (i % 3 - 1) * 0x1p-140F;
      for (int i = 160; i < 192; ++i) x[static_cast<std::size_t>(i)] = i % 2 == 0 ? largest : -largest;
      for (int i = 192; i < 224; ++i) x[static_cast<std::size_t>(i)] *= 0x1p-98F;
      std::vector<std::int8_t> high(x.size(), 99);
      std::vector<std::int8_t> low(x.size(), 99);
      std::vector<float> scales(7);
      std::vector<float> sums(7);
      table->quantize_row(x.data(), 224, 32, order, high.data(), low.data(), scales.data(), sums.data());
      for (std::size_t g = 0; g < 3; ++g) check(std::isnan(scales[g]), what + "not finite: NaN scale");
      check(scales[3] == 0.0F && sums[3] == 0.0F, what + "zeros");
      check(scales[4] == 0.0F, what + "tiny values");
      for (std::size_t i = 96; i < 160; ++i) check(high[i] == 0 && low[i] == 0, what + "zeros");
      for (std::size_t i = 160; i < 192; ++i) check(std::abs(256 * high[i] + low[i]) == 32512, what + "largest values");
      check(std::abs(scales[5] * 32512.0 - largest) <= largest * std::exp2(-16), what + "largest values");
      check(scales[6] > 0.0F, what + "small values are kept");
    }
  }
}

// The portable fused multiply-add against the library's, in the cases that it treats apart: sums next to half way
// between two float32 numbers, subnormal ones, zeros of either sign, infinities, and any exponents.
void check_portable_fma(Random& random) {
  const auto power = [&](int low, int high) {
    const double sign = random() % 2 == 0 ? 1.0 : -1.0;
    return static_cast<float>(sign * std::ldexp(1.0 + static_cast<double>(random() >> 41) * 0x1p-23,
                                                static_cast<int>(pick(random, low, high))));
  };
  for (int trial = 0; trial < 20000; ++trial) {
    float a[lily::cpu::kTileRows];
    float b[lily::cpu::kTileRows];
    float y[lily::cpu::kTileRows];
    float expected[lily::cpu::kTileRows];
    for (int n = 0; n < lily::cpu::kTileRows; ++n) {
      const bool ordinary = trial % 2 == 0 && n != trial / 2 % lily::cpu::kTileRows;  // one special lane, or all
      a[n] = power(-30, 30);
      b[n] = power(-30, 30);
      y[n] = power(-40, 40);
      switch (ordinary ? 7 : random() % 7) {
        case 0:  // half an ulp of y, and a little more or less
          y[n] = power(0, 0);
          a[n] = std::ldexp(1.0F + static_cast<float>(pick(random, -1, 1)) * 0x1p-23F, -12);
          b[n] = std::ldexp(1.0F + static_cast<float>(pick(random, -1, 1)) * 0x1p-23F, -12);
          break;
        case 1:  // half an ulp, and what float64 cannot see
          y[n] = power(30, 30);
          a[n] = 64.0F + 0x1p-17F * static_cast<float>(pick(random, -1, 1));
          b[n] = 1.0F;
          break;
        case 2:  // half a step of the subnormal numbers, and a little more or less
          a[n] = std::ldexp(1.0F + static_cast<float>(pick(random, -1, 1)) * 0x1p-23F, -75);
          b[n] = std::ldexp(1.0F + static_cast<float>(pick(random, -1, 1)) * 0x1p-23F, -75);
          y[n] = power(-128, -126);
          break;
        case 3:
          a[n] = random() % 2 == 0 ? 0.0F : -0.0F;
          y[n] = random() % 2 == 0 ? 0.0F : -0.0F;
          break;
        case 4:
          b[n] = 1.0F;
          y[n] = -a[n];
          break;
        case 5:
          a[n] = power(60, 127);
          b[n] = power(60, 127);
          break;
        case 6:
          y[n] = std::numeric_limits<float>::infinity();
          break;
        default:
          break;
      }
      expected[n] = std::fma(a[n], b[n], y[n]);
    }
    lily::cpu::fused_multiply_add(a, b, y);
    check(std::memcmp(y, expected, sizeof y) == 0, "portable fused multiply-add");
  }
}

// Whether select_kernels(name) throws and names what can run here.
bool is_refused(const std::string& name) {
  std::string available;
  for (const std::string& each : lily::cpu::available_isas()) available += (available.empty() ? "" : ", ") + each;
  try {
    static_cast<void>(lily::cpu::select_kernels(name));
  } catch (const lily::Error& error) {
    return error.kind() == lily::ErrorKind::config &&
           std::string(error.what()).find("choose one of: " + available) != std::string::npos;
  }
  return false;
}

void check_selection() {
  const std::vector<std::string> names = lily::cpu::available_isas();
  check(!names.empty() && names.back() == "portable", "portable is the last instruction set");
  check(lily::cpu::select_kernels(names.back()).name == names.back(), "select by name");
  setenv("LILY_CPU_ISA", "portable", 1);
  check(std::string(lily::cpu::select_kernels("").name) == "portable", "LILY_CPU_ISA chooses");
  check(std::string(lily::cpu::select_kernels(names.front()).name) == names.front(), "a name wins over LILY_CPU_ISA");
  unsetenv("LILY_CPU_ISA");
  check(std::string(lily::cpu::select_kernels("").name) == names.front(), "the best is the default");
  for (const std::string name : {"z80", "amx", "avx512", "avx2", "i8mm", "neon"}) {
    if (std::ranges::find(names, name) != names.end()) continue;
    setenv("LILY_CPU_ISA", name.c_str(), 1);
    check(is_refused(name) && is_refused(""), name + " cannot run here and is refused with what can");
    unsetenv("LILY_CPU_ISA");
  }
}

}  // namespace

int main(int argc, char** argv) {
  Random random(argc > 1 ? std::stoull(argv[1]) : 20240607);
  check_selection();
  const std::vector<std::string> wanted(argv + std::min(argc, 2), argv + argc);
  check(wanted.empty() || lily::cpu::available_isas() == wanted, "the instruction sets named are those that run here");
  std::vector<const KernelTable*> tables;
  std::string names;
  for (const std::string& name : lily::cpu::available_isas()) {
    tables.push_back(&lily::cpu::select_kernels(name));
    names += " " + name;
  }
  check_portable_fma(random);
  check_extreme_activations(tables, random);
  check_affine_grid(tables, random);
  check_plain_grid(tables, random);
  std::printf("test_matmul:%s: %ld checks, %d failed\n", names.c_str(), checks, failures);
  return failures == 0 ? 0 : 1;
}
