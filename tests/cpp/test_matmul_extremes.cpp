// tests/cpp/test_matmul_extremes.cpp -- activations and sums at the edges of their types.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu/matmul/portable_fma.h"
#include "matmul_problem.h"

namespace lily::test {
namespace {

// Values that are not finite, all zero, tiny, and as large as can be.
TEST_CASE("extreme activations") {
  Random random(kSeed);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float largest = std::numeric_limits<float>::max();
  for (const KernelTable* table : all_tables()) {
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
      for (std::size_t g = 0; g < 3; ++g) CHECK_MESSAGE(std::isnan(scales[g]), what, "not finite: NaN scale");
      CHECK_MESSAGE((scales[3] == 0.0F && sums[3] == 0.0F), what, "zeros");
      CHECK_MESSAGE(scales[4] == 0.0F, what, "tiny values");
      for (std::size_t i = 96; i < 160; ++i) CHECK_MESSAGE((high[i] == 0 && low[i] == 0), what, "zeros");
      for (std::size_t i = 160; i < 192; ++i)
        CHECK_MESSAGE(std::abs(256 * high[i] + low[i]) == 32512, what, "largest values");
      CHECK_MESSAGE(std::abs(scales[5] * 32512.0 - largest) <= largest * std::exp2(-16), what, "largest values");
      CHECK_MESSAGE(scales[6] > 0.0F, what, "small values are kept");
    }
  }
}

// Activations that lie half way between two integers, at all the borders of the two halves: they go to the even one.
TEST_CASE("activations half way between integers") {
  for (const KernelTable* table : all_tables()) {
    for (int first = -384; first < 384; first += 31) {
      float x[32];
      x[0] = 32512.0F;  // the group's scale is one
      for (int i = 1; i < 32; ++i) x[i] = static_cast<float>(first + i) + 0.5F;
      std::int8_t high[32];
      std::int8_t low[32];
      float scale = 0.0F;
      float sum = 0.0F;
      table->quantize_row(x, 32, 32, ColumnOrder::natural, high, low, &scale, &sum);
      CHECK(scale == 1.0F);
      for (int i = 0; i < 32; ++i)
        CHECK_MESSAGE(256 * high[i] + low[i] == static_cast<int>(std::nearbyint(x[i])), table->name, " of ", x[i]);
    }
  }
}

// The portable fused multiply-add against the library's, in the cases that it treats apart: sums next to half way
// between two float32 numbers, subnormal ones, zeros of either sign, infinities, and any exponents.
TEST_CASE("portable fused multiply-add") {
  Random random(kSeed);
  const auto power = [&](int low, int high) {
    const double sign = random() % 2 == 0 ? 1.0 : -1.0;
    return static_cast<float>(sign * std::ldexp(1.0 + static_cast<double>(random() >> 41) * 0x1p-23,
                                                static_cast<int>(pick(random, low, high))));
  };
  for (int trial = 0; trial < 20000; ++trial) {
    float a[cpu::kTileRows];
    float b[cpu::kTileRows];
    float y[cpu::kTileRows];
    float expected[cpu::kTileRows];
    for (int n = 0; n < cpu::kTileRows; ++n) {
      const bool ordinary = trial % 2 == 0 && n != trial / 2 % cpu::kTileRows;  // one special lane, or all
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
    cpu::fused_multiply_add(a, b, y);
    CHECK_MESSAGE(std::memcmp(y, expected, sizeof y) == 0, "portable fused multiply-add");
  }
}

}  // namespace
}  // namespace lily::test
