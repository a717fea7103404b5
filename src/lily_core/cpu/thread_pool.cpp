// cpu/thread_pool.cpp -- dynamic scheduling of loops over worker threads.
#include "cpu/thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/default_floats.h"
#include "base/error.h"

namespace lily::cpu {
namespace {

// 30 to 100 microseconds, depending on the processor: longer than the serial parts between two loops of a step, shorter
// than a pause of the caller.
constexpr int kSpins = 2000;

constexpr std::uint64_t kOpen = 1ULL << 31;
constexpr std::uint64_t kInside = kOpen - 1;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::int64_t threads)
    : shares_(static_cast<std::size_t>(std::max<std::int64_t>(threads, 1))), process_id_(::getpid()) {
  if (threads < 1) throw Error(ErrorKind::config, "threads must be at least 1");
  workers_->reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (std::int64_t worker = 1; worker < threads; ++worker) {
      workers_->emplace_back([this, worker] { serve(worker); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = workers_->size();
    stop();
    throw Error(ErrorKind::backend, "the system started " + std::to_string(started + 1) + " of " +
                                        std::to_string(threads) + " threads and refused the next one (" + error.what() +
                                        "); ask for fewer with threads=");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  if (::getpid() != process_id_) {
    static_cast<void>(workers_.release());  // a thread that does not exist can neither be joined nor be detached
    return;
  }
  for (std::thread& worker : *workers_) worker.join();
  workers_->clear();
}

void ThreadPool::work_on_share(std::int64_t share, std::int64_t worker) {
  Share& taken = shares_[static_cast<std::size_t>(share)];
  if (taken.next.load(std::memory_order_relaxed) >= taken.end) return;
  for (std::int64_t index = taken.next.fetch_add(1, std::memory_order_relaxed); index < taken.end;
       index = taken.next.fetch_add(1, std::memory_order_relaxed)) {
    task_(context_, index, worker);
  }
}

void ThreadPool::work(std::int64_t worker) noexcept {
  try {
    for (std::int64_t i = 0; i < size(); ++i) work_on_share((worker + i) % size(), worker);
  } catch (...) {
    const std::scoped_lock lock(failure_mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

void ThreadPool::run(std::int64_t count, Task task, void* context) {
  if (workers_->empty() || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) task(context, index, 0);
    return;
  }
  task_ = task;
  context_ = context;
  for (std::int64_t share = 0; share < size(); ++share) {
    shares_[static_cast<std::size_t>(share)].next.store(count * share / size(), std::memory_order_relaxed);
    shares_[static_cast<std::size_t>(share)].end = count * (share + 1) / size();
  }
  const std::uint64_t generation = (loop_.load(std::memory_order_relaxed) >> 32) + 1;
  loop_.store(generation << 32 | kOpen, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  loop_.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spin = 0; (loop_.load(std::memory_order_acquire) & kInside) != 0; ++spin) {
    if (spin < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // a worker has lost its processor to another process
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Whether the current loop is open; if so, the caller waits for this worker to leave it.
bool ThreadPool::join_loop() {
  std::uint64_t seen = loop_.load(std::memory_order_relaxed);
  while ((seen & kOpen) != 0) {
    if (loop_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}

void ThreadPool::serve(std::int64_t worker) {
  const DefaultFloats floats;  // not what the thread that made this one had
  std::uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
    generation_.wait(seen, std::memory_order_acquire);
    seen = generation_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    if (!join_loop()) continue;
    work(worker);
    loop_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lily::cpu
