// tests/bench_matmul.cpp -- speed of the CPU matrix kernels, for each instruction set and with one thread or more.
//
//   bench_matmul [isa ...]       default: every instruction set that runs here
//   LILY_BENCH_THREADS=2         the most threads
//
// Decode (one row): GB/s of codes, scales and biases read, over memory larger than the caches.
// Prefill (rows > 1): GMAC/s, multiplications of a weight with an activation.
// Times are processor time of the busiest thread, so that other work on the machine disturbs them less.
// Compare with the processor's read bandwidth and peak rates: GB/s of the line "read" is a plain sum over the memory.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/dispatch.h"

namespace {

using lily::ElementType;
using lily::Matrix;
using lily::MatrixFormat;
using lily::cpu::ColumnOrder;
using lily::cpu::KernelTable;
using lily::cpu::MatmulArgs;
using lily::cpu::QuantizedRows;

constexpr std::int64_t kGroup = 64;
constexpr std::int64_t kArenaBytes = std::int64_t{2} << 30;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<std::byte, Free>;

Bytes aligned_bytes(std::int64_t size) {
  if (size <= 0 || size > 4 * kArenaBytes) throw std::bad_alloc();
  void* p = std::aligned_alloc(4096, static_cast<std::size_t>((size + 4095) / 4096 * 4096));
  if (p == nullptr) throw std::bad_alloc();
  return Bytes(static_cast<std::byte*>(p));
}

// Processor time of the calling thread.
double seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Processor time of the busiest of `threads` threads in body(thread), the best of `repeats`.
double best_time(int threads, int repeats, const std::function<void(int)>& body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    std::barrier gate(threads);
    std::vector<double> busy(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&, t] {
        gate.arrive_and_wait();
        const double begin = seconds();
        body(t);
        busy[static_cast<std::size_t>(t)] = seconds() - begin;
      });
    }
    for (std::thread& worker : workers) worker.join();
    best = std::min(best, *std::max_element(busy.begin(), busy.end()));
  }
  return best;
}

// Memory full of bytes that are codes, and bfloat16 scales of either sign near 1, at any address: not subnormal, which
// would be slow. Matrices are cut from it at odd addresses.
class Arena {
 public:
  Arena() : bytes_(aligned_bytes(kArenaBytes)) {
    std::mt19937_64 random(1);
    auto* words = reinterpret_cast<std::uint64_t*>(bytes_.get());
    for (std::int64_t i = 0; i < kArenaBytes / 8; ++i)
      words[i] = (random() & 0x8181818181818181ULL) | 0x3e3e3e3e3e3e3e3eULL;
  }
  [[nodiscard]] const std::byte* at(std::int64_t offset) const { return bytes_.get() + offset; }

 private:
  Bytes bytes_;
};

std::int64_t code_bytes(std::int64_t rows, std::int64_t columns, int bits) { return rows * columns * bits / 8; }
std::int64_t scale_bytes(std::int64_t rows, std::int64_t columns) { return rows * columns / kGroup * 2; }
std::int64_t matrix_bytes(std::int64_t rows, std::int64_t columns, int bits) {
  return code_bytes(rows, columns, bits) + 2 * scale_bytes(rows, columns);
}

Matrix cut_matrix(const Arena& arena, std::int64_t offset, std::int64_t rows, std::int64_t columns, int bits) {
  const std::byte* codes = arena.at(offset);
  const std::byte* scales = codes + code_bytes(rows, columns, bits);
  return {bits == 4 ? MatrixFormat::affine4 : MatrixFormat::affine8,
          ElementType::bfloat16,
          static_cast<std::int32_t>(kGroup),
          rows,
          columns,
          codes,
          scales,
          scales + scale_bytes(rows, columns)};
}

struct Activations {
  Bytes high, low, scales, sums;
  QuantizedRows rows;
  std::vector<float> values;

  Activations(const KernelTable& kernels, std::int64_t count, std::int64_t columns, int bits)
      : high(aligned_bytes(count * lily::cpu::row_stride(columns))),
        low(aligned_bytes(count * lily::cpu::row_stride(columns))),
        scales(aligned_bytes(count * columns / kGroup * 4)),
        sums(aligned_bytes(count * columns / kGroup * 4)),
        values(static_cast<std::size_t>(count * columns)) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& value : values) value = normal(random);
    rows = {count,
            columns,
            lily::cpu::row_stride(columns),
            static_cast<std::int32_t>(kGroup),
            bits == 4 ? ColumnOrder::nibble : ColumnOrder::natural,
            reinterpret_cast<std::int8_t*>(high.get()),
            reinterpret_cast<std::int8_t*>(low.get()),
            reinterpret_cast<float*>(scales.get()),
            reinterpret_cast<float*>(sums.get())};
    for (std::int64_t m = 0; m < count; ++m) quantize(kernels, m);
  }

  void quantize(const KernelTable& kernels, std::int64_t m) {
    kernels.quantize_row(values.data() + m * rows.columns, rows.columns, rows.group_size, rows.order,
                         rows.high + m * rows.stride, rows.low + m * rows.stride, rows.scales + m * rows.groups(),
                         rows.sums + m * rows.groups());
  }
};

// Slices of 64 rows handed out to the threads in order.
constexpr std::int64_t kSlice = 64;

void multiply_slices(const KernelTable& kernels, const Matrix& matrix, MatmulArgs args,
                     std::atomic<std::int64_t>& next) {
  const Bytes scratch = aligned_bytes(static_cast<std::int64_t>(kernels.matmul_scratch_bytes(matrix.columns)));
  args.scratch = scratch.get();
  args.weight = &matrix;
  for (std::int64_t row = next.fetch_add(kSlice); row < matrix.rows; row = next.fetch_add(kSlice)) {
    args.row_begin = row;
    args.row_end = std::min(row + kSlice, matrix.rows);
    args.next_weight = &matrix;
    args.next_row = args.row_end;
    (matrix.is_affine() ? kernels.matmul_affine : kernels.matmul_plain)(args);
  }
}

double time_matrix(const KernelTable& kernels, const Matrix& matrix, const MatmulArgs& args, int threads) {
  std::atomic<std::int64_t> next{0};
  const auto body = [&](int) { multiply_slices(kernels, matrix, args, next); };
  double best = 1e30;
  for (int i = 0; i < 5; ++i) {
    next = 0;
    best = std::min(best, best_time(threads, 1, body));
  }
  return best;
}

void report(const std::string& isa, const std::string& what, int threads, double value, const char* unit) {
  std::printf("%-9s %-34s threads=%d %9.1f %s\n", isa.c_str(), what.c_str(), threads, value, unit);
  std::fflush(stdout);
}

void bench_head(const KernelTable& kernels, const Arena& arena, int bits, int threads) {
  constexpr std::int64_t rows = 248320;
  constexpr std::int64_t columns = 2048;
  const Matrix matrix = cut_matrix(arena, 4099, rows, columns, bits);
  const Activations x(kernels, 1, columns, bits);
  const Bytes out = aligned_bytes(rows * 4);
  MatmulArgs args;
  args.x = &x.rows;
  args.row_count = 1;
  args.out = reinterpret_cast<float*>(out.get());
  args.out_stride = rows;
  const double time = time_matrix(kernels, matrix, args, threads);
  report(kernels.name, "decode 248320x2048 affine" + std::to_string(bits), threads,
         static_cast<double>(matrix_bytes(rows, columns, bits)) / time * 1e-9, "GB/s");
}

// Experts picked at random; each thread multiplies whole matrices of rows x columns.
void bench_experts(const KernelTable& kernels, const Arena& arena, std::int64_t rows, std::int64_t columns,
                   int threads) {
  const std::int64_t bytes = matrix_bytes(rows, columns, 4);
  const std::int64_t count = kArenaBytes / bytes - 1;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) order[static_cast<std::size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  order.resize(static_cast<std::size_t>(count / 2 / threads * threads));
  const Activations x(kernels, 1, columns, 4);
  const double time = best_time(threads, 5, [&](int thread) {
    const Bytes out = aligned_bytes(rows * 4);
    for (std::size_t i = static_cast<std::size_t>(thread); i < order.size(); i += static_cast<std::size_t>(threads)) {
      const Matrix matrix = cut_matrix(arena, 13 + order[i] * bytes, rows, columns, 4);
      MatmulArgs args;
      args.x = &x.rows;
      args.row_count = 1;
      args.out = reinterpret_cast<float*>(out.get());
      args.out_stride = rows;
      std::atomic<std::int64_t> next{0};
      multiply_slices(kernels, matrix, args, next);
    }
  });
  report(kernels.name, "decode experts " + std::to_string(rows) + "x" + std::to_string(columns), threads,
         static_cast<double>(bytes) * static_cast<double>(order.size()) / time * 1e-9, "GB/s");
}

void bench_prefill(const KernelTable& kernels, const Arena& arena, std::int64_t inputs, int bits, bool gather,
                   int threads) {
  constexpr std::int64_t columns = 2048;
  const std::int64_t rows = inputs > 64 ? 2048 : 8192;
  const Matrix matrix = cut_matrix(arena, 4099, rows, columns, bits);
  const Activations x(kernels, inputs, columns, bits);
  const Bytes out = aligned_bytes(rows * inputs * 4);
  std::vector<std::int32_t> index(static_cast<std::size_t>(inputs));
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = static_cast<std::int32_t>(index.size() - 1 - i);
  MatmulArgs args;
  args.x = &x.rows;
  args.row_index = gather ? index.data() : nullptr;
  args.row_count = inputs;
  args.out = reinterpret_cast<float*>(out.get());
  args.out_stride = rows;
  const double time = time_matrix(kernels, matrix, args, threads);
  report(kernels.name,
         "prefill affine" + std::to_string(bits) + (gather ? " gathered" : "") + " rows " + std::to_string(inputs),
         threads, static_cast<double>(rows * columns * inputs) / time * 1e-9, "GMAC/s");
}

void bench_plain(const KernelTable& kernels, const Arena& arena, std::int64_t inputs, int threads) {
  constexpr std::int64_t columns = 2048;
  const std::int64_t rows = inputs == 1 ? 200000 : 2048;
  const Matrix matrix{MatrixFormat::plain, ElementType::bfloat16, 0, rows, columns, arena.at(4099), nullptr, nullptr};
  const Activations x(kernels, inputs, columns, 4);
  const Bytes out = aligned_bytes(rows * inputs * 4);
  MatmulArgs args;
  args.x_plain = x.values.data();
  args.x_stride = columns;
  args.row_count = inputs;
  args.out = reinterpret_cast<float*>(out.get());
  args.out_stride = rows;
  const double work = static_cast<double>(rows * columns * inputs) / time_matrix(kernels, matrix, args, threads) * 1e-9;
  report(kernels.name, "plain bfloat16 rows " + std::to_string(inputs), threads, inputs == 1 ? 2 * work : work,
         inputs == 1 ? "GB/s" : "GMAC/s");
}

void bench_quantize(const KernelTable& kernels) {
  Activations x(kernels, 64, 2048, 4);
  const double time = best_time(1, 5, [&](int) {
    for (int repeat = 0; repeat < 100; ++repeat) {
      for (std::int64_t m = 0; m < 64; ++m) x.quantize(kernels, m);
    }
  });
  report(kernels.name, "quantize_row", 1, 6400.0 * 2048.0 / time * 1e-9, "Gvalues/s");
}

void bench_read(const Arena& arena, int threads) {
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(threads));
  const std::int64_t share = kArenaBytes / threads;
  const double time = best_time(threads, 5, [&](int thread) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(arena.at(share * thread));
    std::uint64_t lanes[32] = {};
    for (std::int64_t i = 0; i < share / 8; i += 32) {
      for (int j = 0; j < 4; ++j) __builtin_prefetch(words + i + 512 + 8 * j);
      for (int j = 0; j < 32; ++j) lanes[j] |= words[i + j];
    }
    for (const std::uint64_t lane : lanes) sums[static_cast<std::size_t>(thread)] |= lane;
  });
  report("-", sums[0] == 0 ? "read (empty)" : "read", threads, static_cast<double>(share * threads) / time * 1e-9,
         "GB/s");
}

}  // namespace

int main(int argc, char** argv) {
  const char* limit = std::getenv("LILY_BENCH_THREADS");
  const int most = limit == nullptr ? 2 : std::max(1, std::atoi(limit));
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) names = lily::cpu::available_isas();
  const Arena arena;
  for (int threads = 1; threads <= most; threads *= 2) bench_read(arena, threads);
  for (const std::string& name : names) {
    const KernelTable& kernels = lily::cpu::select_kernels(name);
    bench_quantize(kernels);
    for (int threads = 1; threads <= most; threads *= 2) {
      bench_head(kernels, arena, 4, threads);
      bench_head(kernels, arena, 8, threads);
      bench_experts(kernels, arena, 512, 2048, threads);
      bench_experts(kernels, arena, 2048, 512, threads);
      for (const std::int64_t inputs : {2, 4, 8, 16, 64, 512}) bench_prefill(kernels, arena, inputs, 4, false, threads);
      bench_prefill(kernels, arena, 16, 4, true, threads);
      bench_prefill(kernels, arena, 16, 8, false, threads);
      for (const std::int64_t inputs : {1, 16}) bench_plain(kernels, arena, inputs, threads);
    }
  }
  return 0;
}
