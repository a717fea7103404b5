// tests/cpp/test_code_kernels.cpp -- queries and keys as 16-bit codes: whatever the values, no sum of products of codes
// leaves 32 bits, and every value is rounded to the nearest code.
#include <algorithm>

#include "checker.h"
#include "cpu/kernels/attention_codes.h"
#include "cpu/kernels/simd_portable.h"
#include "kernel_test.h"

namespace {

using lily::cpu::Strip;
using lily::cpu::VectorPortable;
using lily::test::Random;

struct Coded {
  std::vector<std::int16_t> codes;
  float unit;
};

Coded coded_query(const std::vector<float>& x) {
  Coded row{std::vector<std::int16_t>(x.size()), 0.0F};
  row.unit = lily::cpu::encode_query<VectorPortable>(x.data(), std::int64_t(x.size()), row.codes.data());
  return row;
}

// Partial sums as kernels/attention.h makes them.
Coded coded_key(const std::vector<float>& x) {
  constexpr auto rows = std::size_t(lily::cpu::encoded_together);
  const std::size_t width = x.size();
  std::vector<float> all(rows * width, 0.0F);
  std::copy(x.begin(), x.end(), all.begin() + std::ptrdiff_t(5 * width));
  alignas(64) float squares[rows * 16] = {};
  auto sum = Strip<VectorPortable>::broadcast(0.0F);
  for (std::size_t d = 0; d < width; d += 16) {
    const auto value = Strip<VectorPortable>::load(x.data() + d);
    sum = fma(value, value, sum);
  }
  sum.store(squares + 5 * 16);
  std::vector<std::int16_t> codes(rows * width);
  float units[rows];
  lily::cpu::encode_keys<VectorPortable>(all.data(), squares, std::int64_t(width), codes.data(), units);
  const auto first = codes.begin() + std::ptrdiff_t(5 * width);
  return {std::vector<std::int16_t>(first, first + std::ptrdiff_t(width)), units[5]};
}

// Rows of every kind that a dot product may meet, of values about as large as `size`.
std::vector<std::vector<float>> rows_of(Random& random, std::size_t width, float size) {
  std::vector<std::vector<float>> rows(6, std::vector<float>(width, 0.0F));
  for (std::size_t d = 0; d < width; ++d) {
    rows[0][d] = random.normal() * size;
    rows[1][d] = size;
    rows[2][d] = d % 2 == 0 ? size : -size;
    rows[3][d] = d % 37 == 3 ? size : size * 0.01F * random.normal();  // a few values far larger than the rest
    rows[4][d] = size * std::exp2(-float(d));
  }
  rows[5][width / 3] = -size;
  return rows;
}

double norm(const std::vector<std::int16_t>& codes) {
  double squares = 0.0;
  for (const std::int16_t code : codes) squares += double(code) * code;
  return std::sqrt(squares);
}

// Half a unit, and what the inverse of the unit, the product and their rounding add: 4 u of 32767 units.
void check_rounding(const lily::test::Checker& check, const std::vector<float>& x, const Coded& row,
                    const std::string& name) {
  double worst = 0.0;
  for (std::size_t d = 0; d < x.size(); ++d) {
    worst = std::max(worst, std::fabs(double(x[d]) / row.unit - row.codes[d]));
  }
  check.expect(worst <= 0.5 + 32767 * 4 * 0x1p-24, name + ": " + std::to_string(worst) + " units");
}

TEST_CASE("rows of every size") {
  const lily::test::Checker check("codes");
  Random random(18);
  for (const std::size_t width : {32U, 64U, 256U, 512U}) {
    double longest_query = 0.0, longest_key = 0.0;
    // From the smallest float32 to rows whose squares still have a sum.
    for (int exponent = -149; exponent <= 58; ++exponent) {
      for (const auto& x : rows_of(random, width, std::ldexp(1.4F, exponent))) {
        const std::string name = std::to_string(width) + " values of 2^" + std::to_string(exponent);
        const Coded query = coded_query(x), key = coded_key(x);
        check_rounding(check, x, query, "query of " + name);
        check_rounding(check, x, key, "key of " + name);
        longest_query = std::max(longest_query, norm(query.codes));
        longest_key = std::max(longest_key, norm(key.codes));
      }
    }
    check.expect(longest_query * longest_key < 0x1p31, std::to_string(width) + " codes: sums of " +
                                                           std::to_string(longest_query) + " x " +
                                                           std::to_string(longest_key));
    check.expect(longest_key > 32000 && longest_query > 64000, "the limits are reached");
  }
}

}  // namespace
