// cpu/thread_pool.cpp -- dynamic scheduling of loops over worker threads.
#include "cpu/thread_pool.h"

#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "engine/error.h"

namespace lily::cpu {
namespace {

// About 50 microseconds: longer than the serial parts between two loops of a step, short against a pause of the caller.
constexpr int kSpins = 20000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::int64_t threads) : process_id_(::getpid()) {
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

void ThreadPool::work(std::int64_t worker) noexcept {
  try {
    for (std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed); index < count_;
         index = next_.fetch_add(1, std::memory_order_relaxed)) {
      task_(context_, index, worker);
    }
  } catch (...) {
    const std::lock_guard lock(failure_mutex_);
    if (failure_ == nullptr) failure_ = std::current_exception();
  }
}

void ThreadPool::run(std::int64_t count, Task task, void* context) {
  if (workers_->empty() || count <= 1) {
    for (std::int64_t index = 0; index < count; ++index) task(context, index, 0);
    return;
  }
  count_ = count;
  task_ = task;
  context_ = context;
  next_.store(0, std::memory_order_relaxed);
  active_.store(static_cast<std::int64_t>(workers_->size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  work(0);
  for (int spin = 0; active_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      pause();
    } else {
      std::this_thread::yield();  // a worker has lost its processor to another process
    }
  }
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::serve(std::int64_t worker) {
  std::uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
    generation_.wait(seen, std::memory_order_acquire);
    ++seen;
    if (stop_.load()) return;
    work(worker);
    active_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lily::cpu
