// tests/cpp/test_sequence_kernels.cpp -- convolution, gated delta rule and attention against double precision, and
// their promise that a chunk may be cut anywhere without changing a bit. u = 2^-24 is half a float32 ulp.
#include <algorithm>
#include <memory>
#include <tuple>

#include "checker.h"
#include "kernel_test.h"

namespace {

using lily::cpu::AttentionArgs;
using lily::cpu::GdnScanArgs;
using lily::cpu::KernelTable;
using lily::cpu::KvSpan;
using lily::cpu::KvType;
using lily::test::Checker;
using lily::test::Guarded;
using lily::test::Random;

constexpr double u = 0x1p-24;
using Sizes = std::vector<std::int64_t>;

std::string named(const char* name, const Sizes& sizes) {
  std::string text = name;
  for (const std::int64_t size : sizes) {
    text += ' ';
    text += std::to_string(size);
  }
  return text;
}

std::size_t area(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

// ---- convolution

struct ConvCase {
  std::int64_t tokens, channels, kernel, begin, end;
  std::vector<float> in, history, taps;
};

// out and history after running the tokens in chunks that end at `cuts`; in place when asked.
std::pair<std::vector<float>, std::vector<float>> run_conv(const KernelTable& table, const ConvCase& c, Sizes cuts,
                                                           bool in_place) {
  Guarded<float> in(c.in), history(c.history), taps(c.taps), out(c.in.size());
  std::copy(c.in.begin(), c.in.end(), out.data());
  cuts.push_back(c.tokens);
  std::int64_t start = 0;
  for (const std::int64_t cut : cuts) {
    float* source = (in_place ? out.data() : in.data()) + start * c.channels;
    table.causal_conv_silu(source, history.data(), taps.data(), cut - start, c.channels, c.kernel, c.begin, c.end,
                           out.data() + start * c.channels);
    start = cut;
  }
  return {out.values(), history.values()};
}

void check_conv(const KernelTable& table, Checker& check, const ConvCase& c) {
  const std::string name = named("conv", {c.tokens, c.channels, c.kernel, c.begin, c.end});
  const std::int64_t past = c.kernel - 1;
  const auto at = [&](std::int64_t t, std::int64_t channel) {  // t = -past is the oldest row of history
    return t < 0 ? c.history[area(t + past, c.channels) + size_t(channel)]
                 : c.in[area(t, c.channels) + size_t(channel)];
  };
  std::vector<double> want(c.in.begin(), c.in.end());
  std::vector<float> want_history = c.history;
  for (std::int64_t channel = c.begin; channel < c.end; ++channel) {
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < c.kernel; ++j)
        sum += double(c.taps[area(channel, c.kernel) + size_t(j)]) * at(t - past + j, channel);
      want[area(t, c.channels) + size_t(channel)] = sum / (1.0 + std::exp(-sum));
    }
    for (std::int64_t j = 0; j < past; ++j)
      want_history[area(j, c.channels) + size_t(channel)] = at(c.tokens - past + j, channel);
  }
  const auto [out, history] = run_conv(table, c, {}, false);
  // |sum| stays below 16 or so: kernel roundings of terms of that size, then silu's.
  check.near(out, want, double(c.kernel + 8) * u, 16.0, name);
  check.same_bits(history, want_history, name + " history");
  for (std::int64_t cut = 0; cut <= c.tokens; ++cut) {
    const auto [split, split_history] = run_conv(table, c, {cut}, cut % 2 == 1);
    check.same_bits(split, out, name + " cut at " + std::to_string(cut));
    check.same_bits(split_history, want_history, name + " history cut at " + std::to_string(cut));
  }
}

void test_conv(const KernelTable& table, Checker& check) {
  Random random(11);
  for (const std::int64_t kernel : {1, 2, 3, 4, 5, 9}) {
    for (const std::int64_t tokens : {1, 2, 3, 4, 7, 33}) {
      for (const auto& [channels, begin, end] :
           std::vector<std::tuple<int, int, int>>{{1, 0, 1}, {37, 0, 37}, {100, 16, 91}, {131, 33, 131}}) {
        check_conv(table, check,
                   {tokens, channels, kernel, begin, end, random.normals(area(tokens, channels)),
                    random.normals(area(kernel - 1, channels)), random.normals(area(channels, kernel))});
      }
    }
  }
}

// ---- gated delta rule

struct GdnCase {
  std::int64_t tokens, key_dim, value_dim, stride, gate_stride;
  std::vector<float> query, key, value, decay, beta, state;  // rows of query, key, value have `stride` floats
};

GdnCase random_gdn(Random& random, std::int64_t tokens, std::int64_t key_dim, std::int64_t value_dim) {
  GdnCase c{tokens, key_dim, value_dim, std::max(key_dim, value_dim) + 5, 3, {}, {}, {}, {}, {}, {}};
  const auto spread = 1.0F / std::sqrt(float(key_dim));
  c.query = random.normals(area(tokens, c.stride), spread * spread);
  c.key = random.normals(area(tokens, c.stride), spread);
  c.value = random.normals(area(tokens, c.stride));
  for (std::int64_t i = 0; i < tokens * c.gate_stride; ++i) {
    c.decay.push_back(random.uniform(0.7F, 1.0F));
    c.beta.push_back(random.uniform(0.0F, 1.0F));
  }
  for (std::int64_t t = 0; t < tokens; ++t) {  // keys of norm 1, as the model has
    float* key = c.key.data() + t * c.stride;
    double squares = 0.0;
    for (std::int64_t k = 0; k < key_dim; ++k) squares += double(key[k]) * key[k];
    for (std::int64_t k = 0; k < key_dim; ++k) key[k] = float(key[k] / std::sqrt(squares));
  }
  c.state = random.normals(area(value_dim, key_dim));
  return c;
}

// Output and state after tokens in chunks that end at `cuts` and value rows in pieces that end at `row_cuts`.
std::pair<std::vector<float>, std::vector<float>> run_gdn(const KernelTable& table, const GdnCase& c, Sizes cuts,
                                                          Sizes row_cuts) {
  const auto trimmed = [&](std::vector<float> rows, std::int64_t width) {  // the last row ends at the guard
    rows.resize(rows.size() - static_cast<std::size_t>(c.stride - width));
    return rows;
  };
  Guarded<float> query(trimmed(c.query, c.key_dim)), key(trimmed(c.key, c.key_dim)),
      value(trimmed(c.value, c.value_dim));
  Guarded<float> decay(c.decay), beta(c.beta), state(c.state), out(area(c.tokens, c.value_dim));
  cuts.push_back(c.tokens);
  row_cuts.push_back(c.value_dim);
  std::int64_t start = 0;
  for (const std::int64_t cut : cuts) {
    std::int64_t row = 0;
    for (const std::int64_t row_cut : row_cuts) {
      table.gdn_scan({cut - start, c.key_dim, row, row_cut, query.data() + start * c.stride,
                      key.data() + start * c.stride, value.data() + start * c.stride, c.stride,
                      decay.data() + start * c.gate_stride, beta.data() + start * c.gate_stride, c.gate_stride,
                      state.data(), out.data() + start * c.value_dim, c.value_dim});
      row = row_cut;
    }
    start = cut;
  }
  return {out.values(), state.values()};
}

void gdn_reference(const GdnCase& c, std::vector<double>& out, std::vector<double>& state) {
  out.assign(area(c.tokens, c.value_dim), 0.0);
  state.assign(c.state.begin(), c.state.end());
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const double decay = c.decay[area(t, c.gate_stride)], beta = c.beta[area(t, c.gate_stride)];
    const float *query = c.query.data() + t * c.stride, *key = c.key.data() + t * c.stride;
    for (std::int64_t v = 0; v < c.value_dim; ++v) {
      double* row = state.data() + v * c.key_dim;
      double seen = 0.0, y = 0.0;
      for (std::int64_t k = 0; k < c.key_dim; ++k) seen += (row[k] *= decay) * key[k];
      const double d = beta * (c.value[area(t, c.stride) + size_t(v)] - seen);
      for (std::int64_t k = 0; k < c.key_dim; ++k) y += (row[k] += d * key[k]) * query[k];
      out[area(t, c.value_dim) + size_t(v)] = y;
    }
  }
}

void test_gdn(const KernelTable& table, Checker& check) {
  Random random(12);
  for (const auto& [tokens, key_dim, value_dim] : std::vector<std::tuple<int, int, int>>{{1, 128, 128},
                                                                                         {9, 128, 128},
                                                                                         {40, 128, 37},
                                                                                         {5, 1, 1},
                                                                                         {6, 7, 3},
                                                                                         {7, 33, 18},
                                                                                         {8, 64, 64},
                                                                                         {3, 130, 21},
                                                                                         {11, 100, 5}}) {
    const GdnCase c = random_gdn(random, tokens, key_dim, value_dim);
    const std::string name = named("gdn", {tokens, key_dim, value_dim});
    const auto [out, state] = run_gdn(table, c, {}, {});
    std::vector<double> want, want_state;
    gdn_reference(c, want, want_state);
    // Sums of key_dim terms near 1 in 16 partial sums: key_dim / 16 + 4 roundings, carried over < 1 / (1 - 0.85) steps.
    check.near(out, want, (key_dim / 16 + 4) * 7 * u, 1.0, name);
    check.near(state, want_state, (key_dim / 16 + 4) * 7 * u, 1.0, name + " state");
    for (std::int64_t cut = 0; cut <= tokens; ++cut) {
      const auto [split, split_state] = run_gdn(table, c, {cut}, {cut * value_dim / tokens});
      check.same_bits(split, out, name + " cut at " + std::to_string(cut));
      check.same_bits(split_state, state, name + " state cut at " + std::to_string(cut));
    }
    Sizes every;
    for (std::int64_t t = 1; t < tokens; ++t) every.push_back(t);
    check.same_bits(run_gdn(table, c, every, {}).second, state, name + " token by token");
  }
}

// key_dim 128 has loops of its own; padded with zeros to 144 the same rows go through the general ones.
void test_gdn_general_path(const KernelTable& table, Checker& check) {
  Random random(13);
  const GdnCase narrow = random_gdn(random, 17, 128, 35);
  GdnCase wide = narrow;
  wide.key_dim = 144;
  wide.stride = 144 + 5;
  const auto widen = [](const std::vector<float>& rows, std::int64_t count, std::int64_t from, std::int64_t kept,
                        std::int64_t to) {
    std::vector<float> result(area(count, to), 0.0F);
    for (std::int64_t r = 0; r < count; ++r) std::copy_n(rows.begin() + r * from, kept, result.begin() + r * to);
    return result;
  };
  wide.query = widen(narrow.query, 17, narrow.stride, 128, wide.stride);
  wide.key = widen(narrow.key, 17, narrow.stride, 128, wide.stride);
  wide.value = widen(narrow.value, 17, narrow.stride, 35, wide.stride);
  wide.state = widen(narrow.state, 35, 128, 128, 144);
  const auto [out, state] = run_gdn(table, narrow, {}, {});
  const auto [wide_out, wide_state] = run_gdn(table, wide, {}, {});
  check.same_bits(wide_out, out, "gdn 128 against the general path");
  check.same_bits(wide_state, widen(state, 35, 128, 128, 144), "gdn 128 state against the general path");
}

// ---- attention

struct AttentionCase {
  std::int64_t head_dim;
  KvType type;
  Sizes visible;
  std::vector<float> query;                 // [rows, head_dim]
  std::vector<std::uint16_t> keys, values;  // [visible.back(), head_dim]
};

AttentionCase random_attention(Random& random, std::int64_t head_dim, KvType type, const Sizes& visible) {
  AttentionCase c{
      head_dim, type,
      visible,  random.normals(area(std::int64_t(visible.size()), head_dim), 2.0F / std::sqrt(float(head_dim))),
      {},       {}};
  for (std::size_t i = 0; i < area(visible.back(), head_dim); ++i) {
    const float key = random.normal(), value = random.normal();
    const bool brain = type == KvType::bfloat16;
    c.keys.push_back(brain ? lily::float_to_bfloat16(key) : lily::float_to_float16(key));
    c.values.push_back(brain ? lily::float_to_bfloat16(value) : lily::float_to_float16(value));
  }
  return c;
}

// Rows [begin, end) of the case, the cache in spans that end at `cuts`, each against a guard page of its own.
std::vector<float> run_attention(const KernelTable& table, const AttentionCase& c, std::int64_t begin, std::int64_t end,
                                 Sizes cuts) {
  const std::int64_t rows = end - begin, held = c.visible[size_t(end - 1)];
  cuts.push_back(held);
  std::vector<std::unique_ptr<Guarded<std::uint16_t>>> memory;
  std::vector<KvSpan> spans;
  std::int64_t start = 0;
  const auto guard = [&](const std::vector<std::uint16_t>& from, std::int64_t to) {
    memory.push_back(std::make_unique<Guarded<std::uint16_t>>(
        std::vector<std::uint16_t>(from.begin() + start * c.head_dim, from.begin() + to * c.head_dim)));
    return memory.back()->data();
  };
  for (const std::int64_t cut : cuts) {
    const std::int64_t to = std::min(cut, held);
    const auto* keys = guard(c.keys, to);
    spans.push_back({keys, guard(c.values, to), to - start});
    start = to;
  }
  Guarded<float> query(std::vector<float>(c.query.begin() + begin * c.head_dim, c.query.begin() + end * c.head_dim)),
      out(area(rows, c.head_dim));
  std::vector<const float*> query_rows;
  std::vector<float*> out_rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    query_rows.push_back(query.data() + r * c.head_dim);
    out_rows.push_back(out.data() + r * c.head_dim);
  }
  Guarded<std::byte> scratch((table.attention_scratch_bytes(rows, c.head_dim) + 63) / 64 * 64);
  AttentionArgs args{rows,
                     c.head_dim,
                     query_rows.data(),
                     out_rows.data(),
                     c.visible.data() + begin,
                     spans.data(),
                     std::int64_t(spans.size()),
                     c.type,
                     scratch.data()};
  table.attention(args);
  return out.values();
}

std::vector<double> attention_reference(const AttentionCase& c) {
  const auto real = [&](std::uint16_t bits) {
    return double(c.type == KvType::bfloat16 ? lily::bfloat16_to_float(bits) : lily::float16_to_float(bits));
  };
  std::vector<double> out(c.query.size(), 0.0);
  for (std::size_t r = 0; r < c.visible.size(); ++r) {
    std::vector<double> scores(size_t(c.visible[r]), 0.0);
    double best = -1e300, total = 0.0;
    for (std::size_t p = 0; p < scores.size(); ++p) {
      for (std::size_t d = 0; d < size_t(c.head_dim); ++d)
        scores[p] += double(c.query[r * size_t(c.head_dim) + d]) * real(c.keys[p * size_t(c.head_dim) + d]);
      best = std::max(best, scores[p]);
    }
    for (double& score : scores) total += score = std::exp(score - best);
    for (std::size_t p = 0; p < scores.size(); ++p) {
      for (std::size_t d = 0; d < size_t(c.head_dim); ++d)
        out[r * size_t(c.head_dim) + d] += scores[p] / total * real(c.values[p * size_t(c.head_dim) + d]);
    }
  }
  return out;
}

void check_attention(const KernelTable& table, Checker& check, const AttentionCase& c) {
  const auto rows = std::int64_t(c.visible.size());
  const std::string name = named(c.type == KvType::bfloat16 ? "attention bf16" : "attention f16",
                                 {rows, c.head_dim, c.visible.front(), c.visible.back()});
  const auto out = run_attention(table, c, 0, rows, {});
  // Rounding queries and keys to 16-bit codes moves a score by 0.29 sqrt(2) / 32700 |q| |k|, as a standard deviation:
  // 2.5e-5 sqrt(head_dim) here, and no output by more than twice that. Float32 adds 16 * 20 u to scores (|.| < 16) and
  // less to sums of products with them.
  check.near(out, attention_reference(c), 5e-5 * std::sqrt(double(c.head_dim)) + 400 * u, 1.0, name);
  std::vector<float> alone;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = run_attention(table, c, r, r + 1, {});
    alone.insert(alone.end(), row.begin(), row.end());
  }
  check.same_bits(alone, out, name + " rows alone");
  if (rows > 3) {
    auto parts = run_attention(table, c, 0, 3, {});
    const auto rest = run_attention(table, c, 3, rows, {});
    parts.insert(parts.end(), rest.begin(), rest.end());
    check.same_bits(parts, out, name + " rows in two parts");
  }
  for (std::int64_t cut = 0; cut <= c.visible.back(); cut += 1 + cut / 7) {
    check.same_bits(run_attention(table, c, 0, rows, {cut}), out, name + " span border at " + std::to_string(cut));
  }
  Sizes borders;
  for (std::int64_t border = 3; border < c.visible.back(); border += 11) borders.push_back(border);
  check.same_bits(run_attention(table, c, 0, rows, borders), out, name + " many spans");
}

// first, first + 1 ... last, twice each.
Sizes ascending(std::int64_t first, std::int64_t last) {
  Sizes all;
  for (std::int64_t size = first; size <= last; ++size) all.insert(all.end(), 2, size);
  return all;
}

void test_attention(const KernelTable& table, Checker& check) {
  Random random(14);
  const std::vector<Sizes> cases{{1},
                                 {2, 3, 4, 5, 6},
                                 {64},
                                 {63, 64, 65},
                                 Sizes(8, 200),
                                 {60, 60, 61, 61, 62, 62, 63, 63, 64, 64, 65, 65, 66, 66},
                                 {1, 1, 1, 1, 129, 129, 129, 129, 129, 130},
                                 Sizes(5, 331),
                                 Sizes(67, 150),  // many rows: wider slices
                                 ascending(50, 90)};
  for (const KvType type : {KvType::bfloat16, KvType::float16}) {
    for (const std::int64_t head_dim : {1, 7, 16, 33, 64, 100, 256}) {
      for (const Sizes& visible : cases)
        check_attention(table, check, random_attention(random, head_dim, type, visible));
    }
  }
}

// What a row must not see may hold anything: NaN there changes nothing. NaN that it sees comes out, and nothing
// crashes.
void test_attention_not_finite(const KernelTable& table, Checker& check) {
  Random random(15);
  AttentionCase c = random_attention(random, 33, KvType::bfloat16, {70, 71, 72, 73, 74, 75});
  const auto before = run_attention(table, c, 0, 6, {});
  std::fill(c.keys.begin() + 72 * 33, c.keys.end(), std::uint16_t{0x7fc0});
  std::fill(c.values.begin() + 72 * 33, c.values.end(), std::uint16_t{0x7f80});
  const auto after = run_attention(table, c, 0, 6, {});
  const auto seeing = std::ptrdiff_t{3 * 33};
  check.same_bits(std::vector<float>(after.begin(), after.begin() + seeing),
                  std::vector<float>(before.begin(), before.begin() + seeing), "NaN beyond the visible positions");
  check.expect(std::all_of(after.begin() + seeing, after.end(), [](float x) { return std::isnan(x); }), "NaN in sight");
}

// Codes at their limits: rows whose values are all as large, so that the sum of products is the largest that there is,
// rows with a single value, and rows of zeros. Scores are up to 24. Equal values are rounded alike, each by half a unit
// at most: a score by (1 / 32700 + 1 / 65500) / 2 sqrt(head_dim) |q| |k|.
void test_attention_extreme_codes(const KernelTable& table, Checker& check) {
  Random random(17);
  for (const std::int64_t head_dim : {1, 31, 100, 256}) {
    for (const std::int64_t rows : {1, 5, 9, 67}) {
      AttentionCase c = random_attention(random, head_dim, KvType::float16, Sizes(std::size_t(rows), 75));
      const auto set = [&](std::int64_t kind, std::int64_t d, float size) {
        if (kind % 4 == 0) return size;
        if (kind % 4 == 1) return d % 2 == 0 ? size : -size;
        if (kind % 4 == 2) return d == head_dim / 2 ? size * std::sqrt(float(head_dim)) : 0.0F;
        return 0.0F;
      };
      const float norm = std::sqrt(24.0F / float(head_dim));
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t d = 0; d < head_dim; ++d) c.query[area(r, head_dim) + size_t(d)] = set(r, d, norm);
      }
      for (std::int64_t p = 0; p < 75; p += 3) {
        for (std::int64_t d = 0; d < head_dim; ++d) {
          c.keys[area(p, head_dim) + size_t(d)] = lily::float_to_float16(set(p / 3, d, p % 2 == 0 ? norm : -norm));
        }
      }
      check.near(run_attention(table, c, 0, rows, {}), attention_reference(c),
                 24 * 2.3e-5 * std::sqrt(double(head_dim)) + 800 * u, 1.0,
                 named("attention extreme codes", {head_dim, rows}));
    }
  }
}

// Keys of trained models have a few dimensions far larger than the rest, and these set the unit of all codes. Even
// where the queries cancel them, so that every dimension weighs the same in a score, the error is no larger than with
// queries and keys in bfloat16.
void test_attention_outliers(const KernelTable& table, Checker& check) {
  Random random(19);
  const auto width = std::size_t{256};
  for (const std::size_t outliers : {1, 2, 4}) {
    for (const float query_share : {0.0F, 0.01F, 1.0F}) {
      AttentionCase c = random_attention(random, 256, KvType::float16, Sizes(67, 100));
      for (std::size_t p = 0; p < 100; ++p) {
        for (std::size_t d = 0; d < outliers; ++d) {
          c.keys[p * width + d * 61] = lily::float_to_float16(100.0F * random.normal());
        }
      }
      for (std::size_t r = 0; r < 67; ++r) {
        for (std::size_t d = 0; d < width; ++d)
          c.query[r * width + d] *= d % 61 == 0 && d / 61 < outliers ? query_share : 1;
      }
      const auto want = attention_reference(c);
      const auto error_of = [&](const auto& found) {
        double squares = 0.0;
        for (std::size_t i = 0; i < want.size(); ++i) squares += (found[i] - want[i]) * (found[i] - want[i]);
        return std::sqrt(squares);
      };
      AttentionCase rounded = c;
      for (float& q : rounded.query) q = lily::bfloat16_to_float(lily::float_to_bfloat16(q));
      for (std::uint16_t& key : rounded.keys) {
        key = lily::float_to_float16(lily::bfloat16_to_float(lily::float_to_bfloat16(lily::float16_to_float(key))));
      }
      const double error = error_of(run_attention(table, c, 0, 67, {})),
                   bfloat16_error = error_of(attention_reference(rounded));
      check.expect(error <= bfloat16_error, named("attention outliers", {std::int64_t(outliers)}) + " x " +
                                                std::to_string(query_share) + ": " + std::to_string(error) +
                                                " where bfloat16 has " + std::to_string(bfloat16_error));
    }
  }
}

// Scores hundreds apart: only the running maximum keeps their exponentials finite, whichever block holds the largest.
void test_attention_large_scores(const KernelTable& table, Checker& check) {
  Random random(16);
  for (const std::int64_t largest : {5, 70, 140}) {
    AttentionCase c = random_attention(random, 64, KvType::float16, Sizes(6, 190));
    for (float& q : c.query) q *= 24.0F;
    for (std::size_t d = 0; d < 64; ++d) {
      c.keys[area(largest, 64) + d] = lily::float_to_float16(c.query[d] > 0.0F ? 1.0F : -1.0F);
    }
    // Scores (|.| < 400) are off by at most 400 * 20 u.
    check.near(run_attention(table, c, 0, 6, {}), attention_reference(c), 8000 * u, 1.0,
               named("attention large scores", {largest}));
  }
}

TEST_CASE("convolution") { lily::test::on_every_isa(test_conv); }
TEST_CASE("gated delta rule") { lily::test::on_every_isa(test_gdn); }
TEST_CASE("gated delta rule, general path") { lily::test::on_every_isa(test_gdn_general_path); }
TEST_CASE("attention") { lily::test::on_every_isa(test_attention); }
TEST_CASE("attention to values that are not finite") { lily::test::on_every_isa(test_attention_not_finite); }
TEST_CASE("attention with extreme codes") { lily::test::on_every_isa(test_attention_extreme_codes); }
TEST_CASE("attention with outliers") { lily::test::on_every_isa(test_attention_outliers); }
TEST_CASE("attention with large scores") { lily::test::on_every_isa(test_attention_large_scores); }

}  // namespace
