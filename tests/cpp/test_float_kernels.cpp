// tests/cpp/test_float_kernels.cpp -- norms, gates, softmax, rope and cache types against double precision.
//
// Sizes are odd on purpose and every array ends at an unreadable page. u = 2^-24 is half a float32 ulp.
#include <limits>

#include "checker.h"
#include "kernel_test.h"

namespace {

using lily::cpu::KernelTable;
using lily::cpu::KvType;
using lily::test::Checker;
using lily::test::Guarded;
using lily::test::Random;

constexpr double u = 0x1p-24;
constexpr std::size_t sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 255, 257, 1000, 2048, 2051};
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float quiet_nan = std::numeric_limits<float>::quiet_NaN();

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

std::string at_size(const char* name, std::size_t size) { return std::string(name) + " size " + std::to_string(size); }

// eps is nothing beside large rows, much beside small ones, and all there is beside zeros.
void test_norms_of_scale(const KernelTable& table, Checker& check, float scale) {
  Random random(1);
  for (const std::size_t size : sizes) {
    Guarded<float> x(random.normals(size, 1.0F)), weight(random.normals(size)), gate(random.normals(size, 4.0F));
    for (std::size_t i = 0; i < size; ++i) x[i] *= scale;
    Guarded<float> out(size), gated(size), unit(x.values());
    double squares = 0.0;
    for (std::size_t i = 0; i < size; ++i) squares += double(x[i]) * x[i];
    const double rms = 1.0 / std::sqrt(squares / double(size) + 1e-6);
    std::vector<double> want(size), want_gated(size), want_unit(size);
    for (std::size_t i = 0; i < size; ++i) {
      want[i] = x[i] * rms * weight[i];
      want_gated[i] = want[i] * silu(gate[i]);
      want_unit[i] = x[i] / std::sqrt(squares + 1e-6) * 0.25;
    }
    const auto n = static_cast<std::int64_t>(size);
    table.rms_norm(x.data(), weight.data(), n, 1e-6F, out.data());
    table.rms_norm_gated(x.data(), weight.data(), gate.data(), n, 1e-6F, gated.data());
    table.l2_normalize(unit.data(), n, 1e-6F, 0.25F);
    // The sum has at most 2051 / 64 + 10 roundings of positive terms, halved by the root; then 5 roundings.
    check.near(out.values(), want, 30 * u, 1e-30, at_size("rms_norm", size));
    check.near(unit.values(), want_unit, 30 * u, 1e-30, at_size("l2_normalize", size));
    // silu adds exp (2 u) and three roundings.
    check.near(gated.values(), want_gated, 38 * u, 1e-30, at_size("rms_norm_gated", size));
    const auto first = out.values();
    table.rms_norm(x.data(), weight.data(), n, 1e-6F, x.data());
    check.same_bits(first, x.values(), at_size("rms_norm in place", size));
    check.expect(out.margin_intact() && gated.margin_intact() && unit.margin_intact(), at_size("norm margin", size));
  }
}

void test_norms(const KernelTable& table, Checker& check) {
  for (const float scale : {3.0F, 0.0F, 1e-4F, 1e-3F, 1e4F}) test_norms_of_scale(table, check, scale);
}

void test_gates(const KernelTable& table, Checker& check) {
  Random random(2);
  for (const std::size_t size : sizes) {
    Guarded<float> gate(random.normals(size, 12.0F)), up(random.normals(size));
    Guarded<float> x(up.values()), y(gate.values()), out(size);
    std::vector<double> want(size), want_x(size), want_y(size);
    for (std::size_t i = 0; i < size; ++i) {
      want[i] = silu(gate[i]) * up[i];
      want_x[i] = up[i] * sigmoid(gate[i]);
      want_y[i] = double(gate[i]) + double(0.37F) * up[i];
    }
    const auto n = static_cast<std::int64_t>(size);
    table.silu_multiply(gate.data(), up.data(), n, out.data());
    table.sigmoid_multiply(x.data(), gate.data(), n);
    table.axpy(0.37F, up.data(), n, y.data());
    check.near(out.values(), want, 8 * u, 1e-30, at_size("silu_multiply", size));     // exp 2 u, 4 roundings
    check.near(x.values(), want_x, 8 * u, 1e-30, at_size("sigmoid_multiply", size));  // the same
    check.near(y.values(), want_y, 2 * u, 1.0, at_size("axpy", size));                // product and sum rounded
    check.expect(out.margin_intact() && x.margin_intact() && y.margin_intact(), at_size("gate margin", size));
    const auto first = out.values();
    table.silu_multiply(gate.data(), up.data(), n, up.data());
    check.same_bits(first, up.values(), at_size("silu_multiply into up", size));
  }
}

// sigmoid(x) is close to exp(x) for x << 0, so its relative error there is that of exp and a sum and a quotient.
void test_exp_range(const KernelTable& table, Checker& check) {
  std::vector<float> gate;
  for (float x = -88.0F; x < 120.0F; x += 0.00137F) gate.push_back(x);
  std::vector<double> want;
  for (const float x : gate) want.push_back(sigmoid(x));
  Guarded<float> x(std::vector<float>(gate.size(), 1.0F)), guarded(gate);
  table.sigmoid_multiply(x.data(), guarded.data(), static_cast<std::int64_t>(gate.size()));
  check.near(x.values(), want, 6 * u, 1e-37, "exp over its range");  // exp 2 ulp = 4 u at most, sum, quotient

  Guarded<float> extreme(std::vector<float>{-infinity, infinity, -1e30F, 1e30F, -104.0F, 200.0F, quiet_nan, 0.0F});
  Guarded<float> ones(std::vector<float>(8, 1.0F)), silus(8);
  table.sigmoid_multiply(ones.data(), extreme.data(), 8);
  check.expect(ones[0] == 0.0F && ones[1] == 1.0F && ones[2] == 0.0F && ones[3] == 1.0F && ones[4] >= 0.0F &&
                   ones[4] < 1e-37F && ones[5] == 1.0F && std::isnan(ones[6]) && ones[7] == 0.5F,
               "sigmoid extremes");
  Guarded<float> up(std::vector<float>(8, 1.0F));
  table.silu_multiply(extreme.data(), up.data(), 8, silus.data());
  check.expect(silus[1] == infinity && silus[2] == 0.0F && silus[3] == 1e30F && silus[5] == 200.0F &&
                   std::isnan(silus[6]) && silus[7] == 0.0F,
               "silu extremes");
}

void test_softmax(const KernelTable& table, Checker& check) {
  Random random(3);
  for (const std::size_t size : sizes) {
    Guarded<float> x(random.normals(size, 6.0F)), out(size);
    if (size > 2) x[size - 1] = -infinity;
    double best = -infinity, sum = 0.0;
    for (std::size_t i = 0; i < size; ++i) best = std::max(best, double(x[i]));
    for (std::size_t i = 0; i < size; ++i) sum += std::exp(double(x[i]) - best);
    std::vector<double> want(size);
    for (std::size_t i = 0; i < size; ++i) want[i] = std::exp(double(x[i]) - best) / sum;
    table.softmax(x.data(), static_cast<std::int64_t>(size), out.data());
    // x - max (|.| < 64) is rounded by u * 64 at most; the sum has at most 2051 / 16 + 4 roundings, few at full size.
    check.near(out.values(), want, 160 * u, 1e-30, at_size("softmax", size));
    const auto first = out.values();
    table.softmax(x.data(), static_cast<std::int64_t>(size), x.data());
    check.same_bits(first, x.values(), at_size("softmax in place", size));
    x[size / 2] = quiet_nan;
    table.softmax(x.data(), static_cast<std::int64_t>(size), out.data());
    check.expect(std::isnan(out[0]), at_size("softmax NaN", size));
  }
}

void test_rope(const KernelTable& table, Checker& check) {
  Random random(4);
  for (const std::size_t half : sizes) {
    Guarded<float> x(random.normals(2 * half)), cosine(half), sine(half);
    std::vector<double> want(2 * half);
    for (std::size_t i = 0; i < half; ++i) {
      const float angle = random.uniform(0.0F, 100.0F);
      cosine[i] = std::cos(angle);
      sine[i] = std::sin(angle);
      want[i] = double(x[i]) * cosine[i] - double(x[half + i]) * sine[i];
      want[half + i] = double(x[half + i]) * cosine[i] + double(x[i]) * sine[i];
    }
    table.rope(x.data(), static_cast<std::int64_t>(2 * half), cosine.data(), sine.data());
    check.near(x.values(), want, 2 * u, 8.0, at_size("rope", half));  // |x| < 6: two products and a sum rounded
    check.expect(x.margin_intact(), at_size("rope margin", half));
  }
}

void test_store_kv(const KernelTable& table, Checker& check) {
  Random random(5);
  std::vector<float> values{0.0F,      -0.0F,    65504.0F, 65519.0F,   65520.0F,        -1e9F,   infinity,  -infinity,
                            quiet_nan, 0x1p-24F, 0x1p-25F, 0x1.8p-25F, 0x1.000002p-14F, 6.1e-5F, -0x1p-14F, 3.4e38F};
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t bits = random.bits();
    float value;
    std::memcpy(&value, &bits, 4);
    values.push_back(value);
    values.push_back(random.normal(0.00005F));
    values.push_back(random.normal(5.0F));
  }
  for (const std::size_t size : {values.size(), std::size_t{1}, std::size_t{7}, std::size_t{16}, std::size_t{29}}) {
    Guarded<float> x(std::vector<float>(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(size)));
    Guarded<std::uint16_t> brain(size), half(size);
    table.store_kv(x.data(), static_cast<std::int64_t>(size), KvType::bfloat16, brain.data());
    table.store_kv(x.data(), static_cast<std::int64_t>(size), KvType::float16, half.data());
    bool brain_right = true, half_right = true;
    for (std::size_t i = 0; i < size; ++i) {
      const bool nan = std::isnan(x[i]);
      const float brain_back = lily::bfloat16_to_float(brain[i]), half_back = lily::float16_to_float(half[i]);
      brain_right = brain_right && (nan ? std::isnan(brain_back) : brain[i] == lily::float_to_bfloat16(x[i]));
      half_right = half_right && (nan ? std::isnan(half_back) : half[i] == lily::float_to_float16(x[i]));
    }
    check.expect(brain_right, at_size("store_kv bfloat16", size));
    check.expect(half_right, at_size("store_kv float16", size));
    check.expect(brain.margin_intact() && half.margin_intact(), at_size("store_kv margin", size));
  }
}

// float_to_float16 itself: every float16 survives the round trip, and halfway points go to the even neighbour.
void test_float16_code(const KernelTable&, Checker& check) {
  bool round_trip = true, ties = true;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto here = static_cast<std::uint16_t>(bits);
    const float value = lily::float16_to_float(here);
    const auto negative = static_cast<std::uint16_t>(bits | 0x8000U);
    round_trip = round_trip && lily::float_to_float16(value) == here && lily::float_to_float16(-value) == negative;
    if (bits + 1 == 0x7c00) continue;
    const float next = lily::float16_to_float(static_cast<std::uint16_t>(bits + 1));
    const float middle = 0.5F * (value + next);
    ties = ties && lily::float_to_float16(middle) == static_cast<std::uint16_t>(bits + (bits & 1U)) &&
           lily::float_to_float16(std::nextafter(middle, 1e9F)) == bits + 1 &&
           lily::float_to_float16(std::nextafter(middle, 0.0F)) == bits;
  }
  check.expect(round_trip, "float16 round trip");
  check.expect(ties, "float16 ties to even");
}

TEST_CASE("norms") { lily::test::on_every_isa(test_norms); }
TEST_CASE("gates") { lily::test::on_every_isa(test_gates); }
TEST_CASE("exp over its range") { lily::test::on_every_isa(test_exp_range); }
TEST_CASE("softmax") { lily::test::on_every_isa(test_softmax); }
TEST_CASE("rope") { lily::test::on_every_isa(test_rope); }
TEST_CASE("storing keys and values") { lily::test::on_every_isa(test_store_kv); }
TEST_CASE("conversion to float16") { lily::test::on_every_isa(test_float16_code); }

}  // namespace
