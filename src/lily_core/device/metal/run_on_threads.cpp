// device/metal/run_on_threads.cpp -- workers that take the next index, and the caller's thread that reports.
#include "device/metal/run_on_threads.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace lily::device::metal {
namespace {

class Loop {
 public:
  Loop(std::size_t count, const std::function<void(std::size_t)>& work) : count_(count), work_(work) {}

  void run_worker() {
    for (std::size_t index = 0; take(index);) {
      try {
        work_(index);
        note(nullptr);
      } catch (...) {
        note(std::current_exception());
      }
    }
    const std::scoped_lock lock(mutex_);
    --workers_;
    changed_.notify_all();
  }

  void add_worker() {
    const std::scoped_lock lock(mutex_);
    ++workers_;
  }

  void remove_worker() {
    const std::scoped_lock lock(mutex_);
    --workers_;
  }

  // Returns when no worker is left.
  void report(const std::function<void(std::size_t)>& progress) {
    std::unique_lock lock(mutex_);
    std::size_t told = 0;
    while (true) {
      changed_.wait(lock, [&] { return workers_ == 0 || (done_ > told && failure_ == nullptr); });
      if (done_ > told && failure_ == nullptr && progress) {
        told = done_;
        lock.unlock();
        try {
          progress(told);
          lock.lock();
        } catch (...) {
          lock.lock();
          if (failure_ == nullptr) failure_ = std::current_exception();
        }
      } else if (workers_ == 0) {
        break;
      } else {
        told = done_;
      }
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  bool take(std::size_t& index) {
    const std::scoped_lock lock(mutex_);
    if (failure_ != nullptr || next_ == count_) return false;
    index = next_++;
    return true;
  }

  void note(const std::exception_ptr& failure) {
    const std::scoped_lock lock(mutex_);
    ++done_;
    if (failure_ == nullptr) failure_ = failure;
    changed_.notify_all();
  }

  std::size_t count_;
  const std::function<void(std::size_t)>& work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t next_ = 0;
  std::size_t done_ = 0;
  std::size_t workers_ = 0;
  std::exception_ptr failure_;
};

// Joined when it goes. (std::jthread is not in every libc++ that macOS builds use.)
class Threads {
 public:
  Threads() = default;
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  // Whether the system had another thread.
  bool start(const std::function<void()>& work) {
    try {
      threads_.emplace_back(work);
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace

void run_on_threads(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& progress) {
  Loop loop(count, work);
  Threads workers;
  std::size_t started = 0;
  for (; started < std::min(threads, count); ++started) {
    loop.add_worker();
    if (!workers.start([&loop] { loop.run_worker(); })) {
      loop.remove_worker();
      break;
    }
  }
  if (started == 0 && count > 0) {
    loop.add_worker();
    loop.run_worker();
  }
  loop.report(progress);
}

}  // namespace lily::device::metal
