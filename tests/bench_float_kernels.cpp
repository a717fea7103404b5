// tests/bench_float_kernels.cpp -- speed of the gated delta rule and of attention at the model's sizes, one thread.
//
// For each instruction set, or the one named: best of several runs, GB/s of the bytes that must move and GFLOP/s of
// the arithmetic (a multiply-add counts as two).
#include <time.h>

#include <algorithm>
#include <memory>

#include "cpp/kernel_test.h"

namespace {

using lily::cpu::AttentionArgs;
using lily::cpu::KernelTable;
using lily::cpu::KvSpan;
using lily::cpu::KvType;
using lily::test::Random;

// Seconds of processor time, which a busy machine disturbs less than the wall clock.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

// Seconds of the fastest of `runs` calls.
template <class Function>
double fastest(int runs, Function function) {
  double best = 1e9;
  for (int run = 0; run < runs; ++run) {
    const double start = thread_seconds();
    function();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

void report(const std::string& name, double seconds, double bytes, double operations) {
  std::printf("  %-34s %10.1f us %8.1f GB/s %8.1f GFLOP/s\n", name.c_str(), seconds * 1e6, bytes / seconds * 1e-9,
              operations / seconds * 1e-9);
}

// 32 value heads of 128 x 128 over 16 key heads; `layers` states in turn, so that decode finds them out of cache.
void bench_gdn(const KernelTable& table, std::int64_t tokens, std::int64_t layers, int runs) {
  constexpr std::int64_t heads = 32, width = 128, stride = 8192;
  Random random(1);
  const auto qkv = random.normals(static_cast<std::size_t>(tokens * stride), 0.08F);
  std::vector<float> decay(static_cast<std::size_t>(tokens * heads)), beta(decay.size());
  for (std::size_t i = 0; i < decay.size(); ++i) {
    decay[i] = random.uniform(0.8F, 1.0F);
    beta[i] = random.uniform(0.0F, 1.0F);
  }
  std::vector<float> state(static_cast<std::size_t>(layers * heads * width * width), 0.5F);
  std::vector<float> out(static_cast<std::size_t>(tokens * heads * width));
  const double seconds = fastest(runs, [&] {
    for (std::int64_t item = 0; item < layers * heads; ++item) {
      const std::int64_t head = item % heads;
      table.gdn_scan({tokens, width, 0, width, qkv.data() + head / 2 * width, qkv.data() + 2048 + head / 2 * width,
                      qkv.data() + 4096 + head * width, stride, decay.data() + head, beta.data() + head, heads,
                      state.data() + item * width * width, out.data() + head * width, heads * width});
    }
  });
  const double elements = double(heads * width * width);
  report("gdn_scan tokens " + std::to_string(tokens), seconds / double(layers), elements * 8,
         elements * double(tokens) * 7);
}

// `queries` positions x 8 heads at the end of a cache of `positions`, head_dim 256, in blocks of 64 positions.
void bench_attention(const KernelTable& table, std::int64_t queries, std::int64_t positions, std::int64_t rows_a_call,
                     int runs) {
  constexpr std::int64_t heads = 8, width = 256;
  Random random(2);
  const std::int64_t rows = queries * heads;
  const auto query = random.normals(static_cast<std::size_t>(rows * width), 0.06F);
  std::vector<float> out(query.size());
  std::vector<std::uint16_t> keys(static_cast<std::size_t>(positions * width)), values(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    keys[i] = lily::float_to_bfloat16(random.uniform(-1.0F, 1.0F));
    values[i] = lily::float_to_bfloat16(random.uniform(-1.0F, 1.0F));
  }
  std::vector<KvSpan> spans;
  for (std::int64_t p = 0; p < positions; p += 64) {
    spans.push_back({keys.data() + p * width, values.data() + p * width, std::min<std::int64_t>(64, positions - p)});
  }
  std::vector<const float*> query_rows;
  std::vector<float*> out_rows;
  std::vector<std::int64_t> visible;
  double pairs = 0.0;
  for (std::int64_t r = 0; r < rows; ++r) {
    query_rows.push_back(query.data() + r * width);
    out_rows.push_back(out.data() + r * width);
    visible.push_back(positions - queries + r / heads + 1);
    pairs += double(visible.back());
  }
  std::vector<std::byte> scratch(table.attention_scratch_bytes(rows_a_call, width) + 64);
  void* aligned = scratch.data();
  std::size_t space = scratch.size();
  std::align(64, space - 64, aligned, space);
  const double seconds = fastest(runs, [&] {
    for (std::int64_t r = 0; r < rows; r += rows_a_call) {
      table.attention({std::min(rows_a_call, rows - r), width, query_rows.data() + r, out_rows.data() + r,
                       visible.data() + r, spans.data(), std::int64_t(spans.size()), KvType::bfloat16,
                       static_cast<std::byte*>(aligned)});
    }
  });
  report("attention " + std::to_string(queries) + " x " + std::to_string(positions) + ", rows " +
             std::to_string(rows_a_call),
         seconds, double(positions * width) * 4, pairs * width * 4);
}

void bench_rows(const KernelTable& table) {
  Random random(3);
  constexpr std::int64_t channels = 8192, tokens = 512;
  auto in = random.normals(channels * tokens), history = random.normals(channels * 3), out = in;
  const auto taps = random.normals(channels * 4);
  report("conv_silu 512 x 8192",
         fastest(10,
                 [&] {
                   table.causal_conv_silu(in.data(), history.data(), taps.data(), tokens, channels, 4, 0, channels,
                                          out.data());
                 }),
         double(channels * tokens) * 8, double(channels * tokens) * 8);
  report("silu_multiply 512 x 512",
         fastest(50, [&] { table.silu_multiply(in.data(), history.data(), 512 * 8, out.data()); }), 512 * 8 * 12,
         512 * 8);
  report("rms_norm 2048", fastest(200, [&] { table.rms_norm(in.data(), history.data(), 2048, 1e-6F, out.data()); }),
         2048 * 12, 2048 * 4);
}

}  // namespace

int main(int count, char** arguments) {
  for (const auto& isa : lily::test::float_isas()) {
    if (count > 1 && isa.name != arguments[1]) continue;
    std::printf("%s\n", isa.name.c_str());
    bench_gdn(isa.table, 1, 30, 10);
    bench_gdn(isa.table, 1, 1, 50);
    bench_gdn(isa.table, 512, 1, 8);
    bench_attention(isa.table, 1, 8192, 8, 20);
    bench_attention(isa.table, 1, 131072, 8, 2);
    bench_attention(isa.table, 512, 512, 512, 10);
    bench_attention(isa.table, 256, 1024, 512, 10);
    bench_attention(isa.table, 64, 8192, 512, 6);
    bench_attention(isa.table, 16, 8192, 32, 8);
    bench_rows(isa.table);
  }
  return 0;
}
