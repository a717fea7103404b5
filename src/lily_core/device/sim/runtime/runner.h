// sim/runtime/runner.h -- spreads the threadgroups of a stage over worker threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/worker.h"

namespace lily_sim {

class Runner {
 public:
  explicit Runner(u32 workers);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void run_stage(Launch* launches, u32 count, const RunOptions& options, Report& report);

 private:
  // One stage: `first[i]` is the number of the first threadgroup of launch i.
  struct Stage {
    Launch* launches = nullptr;
    std::vector<u32> first;
    std::vector<u32> permutation;  // empty: in order
    u32 total = 0;
    const RunOptions* options = nullptr;
    std::atomic<u32> next{0};
    std::atomic<bool> failed{false};
  };

  void prepare(Launch* launches, u32 count, const RunOptions& options);
  void work(Worker& worker, u32 worker_index);
  void thread_main(u32 worker_index);

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;  // of workers 1 and up; worker 0 is the caller
  Stage stage_;
  Report* report_ = nullptr;
  std::mutex mutex_;
  std::condition_variable started_, finished_;
  std::uint64_t generation_ = 0;
  u32 running_ = 0;
  bool stopping_ = false;
};

}  // namespace lily_sim
