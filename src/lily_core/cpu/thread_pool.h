// cpu/thread_pool.h -- worker threads that share loops over small tasks; they spin briefly between loops, then sleep.
//
// A loop is open while its caller works on it. A worker that arrives in time joins it, and the caller waits only for
// workers that joined. A worker that lost its processor to another process costs only its share of the work.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace lily::cpu {

class ThreadPool {
 public:
  // `threads` workers in all; the calling thread is one of them.
  explicit ThreadPool(std::int64_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(workers_->size()) + 1; }

  // Runs body(index, worker) once for each index in [0, count); worker is in [0, size()). Each worker has a share of
  // consecutive indices, which it takes in order; then it takes indices from slower workers. Returns when all have run.
  // Rethrows the first exception of a body once all workers have left the loop; some indices may not have run then.
  // One caller at a time.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    using Function = std::remove_reference_t<Body>;
    const auto call = [](void* context, std::int64_t index, std::int64_t worker) {
      (*static_cast<Function*>(context))(index, worker);
    };
    run(count, call, const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Task = void (*)(void*, std::int64_t, std::int64_t);

  // Indices of a loop that one worker takes first, then whoever is free.
  struct alignas(64) Share {
    std::atomic<std::int64_t> next{0};
    std::int64_t end = 0;
  };

  void run(std::int64_t count, Task task, void* context);
  void stop();
  void work(std::int64_t worker) noexcept;
  void work_on_share(std::int64_t share, std::int64_t worker);
  [[nodiscard]] bool join_loop();
  void serve(std::int64_t worker);

  // One cache line each, so that polling a counter does not slow down the others.
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // one more for each loop; workers wait for a change
  alignas(64) std::atomic<std::uint64_t> loop_{0};        // generation << 32 | open << 31 | workers inside
  Task task_ = nullptr;
  void* context_ = nullptr;
  std::vector<Share> shares_;  // [size()]
  std::atomic<bool> stop_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;  // the first of the current loop
  std::int64_t process_id_;
  // Behind a pointer so that a forked child, where the threads do not exist, can drop it.
  std::unique_ptr<std::vector<std::thread>> workers_ = std::make_unique<std::vector<std::thread>>();
};

// Physical cores that this process may run on (affinity mask and, on Linux, the container's quota); at least 1.
[[nodiscard]] std::int64_t physical_core_count();

}  // namespace lily::cpu
