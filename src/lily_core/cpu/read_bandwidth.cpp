// cpu/read_bandwidth.cpp -- a plain sum over memory larger than the caches, by threads that start at the same time.
#include "cpu/read_bandwidth.h"

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "cpu/aligned_buffer.h"

namespace lily::cpu {
namespace {

constexpr std::int64_t kLineBytes = 256;        // read in one step, by vectors of whatever width
constexpr std::int64_t kAheadBytes = 4096;      // fetched ahead
constexpr std::size_t kWords = kLineBytes / 8;  // of a step

// The OR of all words, so that every byte is needed.
std::uint64_t read_all(const std::byte* data, std::int64_t bytes) {
  std::array<std::uint64_t, kWords> lanes{};
  for (std::int64_t i = 0; i < bytes; i += kLineBytes) {
    for (std::int64_t line = 0; line < kLineBytes; line += 64) __builtin_prefetch(data + i + kAheadBytes + line);
    std::array<std::uint64_t, kWords> words;
    std::memcpy(words.data(), data + i, sizeof words);
    for (std::size_t lane = 0; lane < kWords; ++lane) lanes[lane] |= words[lane];
  }
  std::uint64_t all = 0;
  for (const std::uint64_t lane : lanes) all |= lane;
  return all;
}

}  // namespace

std::vector<double> time_reads(std::int64_t threads, std::int64_t bytes, std::int64_t passes) {
  if (threads < 1 || passes < 1 || bytes < kLineBytes) {
    throw Error(ErrorKind::invalid_argument, "threads and passes must be at least 1, bytes at least 256");
  }
  bytes = bytes / kLineBytes * kLineBytes;
  std::vector<AlignedBuffer<std::byte>> buffers;
  for (std::int64_t i = 0; i < threads; ++i) {
    buffers.emplace_back(bytes);
    std::memset(buffers.back().data(), 0x5a, static_cast<std::size_t>(bytes));  // pages of zeros would be one page
  }
  std::barrier gate(threads + 1);
  std::atomic<std::uint64_t> all{0};
  std::vector<std::thread> readers;
  readers.reserve(buffers.size());
  for (const AlignedBuffer<std::byte>& buffer : buffers) {
    readers.emplace_back([&gate, &all, &buffer, bytes, passes] {
      for (std::int64_t pass = 0; pass < passes; ++pass) {
        gate.arrive_and_wait();
        all.fetch_or(read_all(buffer.data(), bytes));
        gate.arrive_and_wait();
      }
    });
  }
  std::vector<double> seconds;
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    gate.arrive_and_wait();
    const auto start = std::chrono::steady_clock::now();
    gate.arrive_and_wait();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (std::thread& reader : readers) reader.join();
  if (all.load() != 0x5a5a5a5a5a5a5a5aULL) throw Error(ErrorKind::backend, "memory did not hold what was written");
  return seconds;
}

}  // namespace lily::cpu
