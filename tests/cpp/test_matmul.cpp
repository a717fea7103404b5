// tests/cpp/test_matmul.cpp -- the matrix kernels of every instruction set that runs here, against the arithmetic
// contract of cpu/kernels.h (bit for bit) and against float64.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cpu/dispatch.h"
#include "matmul_problem.h"

namespace lily::test {
namespace {

using cpu::MatmulArgs;

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
      CHECK_MESSAGE(largest_q == 32512, what, ": the largest magnitude becomes 32512");
      CHECK_MESSAGE(error <= largest * kGroupError, what, ": rounding error of a group");
      CHECK_MESSAGE(std::abs(rows.sums[m * rows.groups() + g] - sum) <= largest * rows.group_size * 1e-6, what,
                    ": sum of a group");
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
  CHECK_MESSAGE(right, where, ": bits");
  CHECK_MESSAGE(untouched, where, ": wrote outside its outputs");
}

// All at once, then a few random ranges of rows with random runs of inputs, then single inputs.
template <class Run>
void for_slices(std::int64_t rows, std::int64_t inputs, Random& random, const Run& run) {
  run(0, rows, 0, inputs);
  const std::int64_t tiles = (rows + cpu::kRowTile - 1) / cpu::kRowTile;
  for (int trial = 0; trial < 6; ++trial) {
    const std::int64_t begin = pick(random, 0, tiles - 1);
    const std::int64_t end = pick(random, begin + 1, tiles);
    const std::int64_t first = pick(random, 0, inputs - 1);
    const std::int64_t count = trial < 2 ? 1 : pick(random, 1, inputs - first);
    run(begin * cpu::kRowTile, std::min(end * cpu::kRowTile, rows), first, count);
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
    CHECK_MESSAGE(
        (std::ranges::equal(high, std::span(rows.high, size)) && std::ranges::equal(low, std::span(rows.low, size)) &&
         std::ranges::equal(scales, std::span(rows.scales, scales.size())) &&
         std::ranges::equal(sums, std::span(rows.sums, sums.size()))),
        what, ": quantize_row's bits");
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

TEST_CASE("quantized matrices") {
  const std::vector<const KernelTable*> tables = all_tables();
  Random random(kSeed);
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
  const GuardedBytes weight(static_cast<std::size_t>(rows * columns * element_bytes(type)), pad);
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
          const double product = static_cast<double>(load_element(weight.data(), type, n * columns + k)) *
                                 x[index[static_cast<std::size_t>(m)] * stride + k];
          exact += product;
          size += std::abs(product);
        }
        CHECK_MESSAGE(std::abs(all[static_cast<std::size_t>(m * rows + n)] - exact) <=
                          size * static_cast<double>(columns / 16 + 6) * std::exp2(-24),
                      what, ": against float64");
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

TEST_CASE("plain matrices") {
  const std::vector<const KernelTable*> tables = all_tables();
  Random random(kSeed);
  for (const ElementType type : {ElementType::bfloat16, ElementType::float16, ElementType::float32}) {
    std::size_t pad = 0;
    for (const std::int64_t columns : {1, 3, 15, 16, 17, 31, 33, 64, 100, 256}) {
      check_plain(type, pick(random, 1, 70), columns, pick(random, 1, 13), pad++ % 8, tables, random);
    }
  }
}

}  // namespace
}  // namespace lily::test
