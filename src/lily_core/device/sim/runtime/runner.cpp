// sim/runtime/runner.cpp -- the worker threads, the order of threadgroups, and the library's entry.
#include "runtime/runner.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "runtime/checker.h"
#include "runtime/faults.h"

namespace lily_sim {

extern const EntryList* const entry_lists[];

Runner::Runner(u32 workers) {
  install_fault_handlers();
  if (kChecked) workers = 1;  // the shadow memory belongs to one thread
  for (u32 i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>(i));
  for (u32 i = 1; i < workers; ++i) threads_.emplace_back([this, i] { thread_main(i); });
}

Runner::~Runner() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  started_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Runner::prepare(Launch* launches, u32 count, const RunOptions& options) {
  stage_.launches = launches;
  stage_.options = &options;
  stage_.first.clear();
  stage_.permutation.clear();
  stage_.total = 0;
  stage_.next = 0;
  stage_.failed = false;
  std::mt19937_64 random(options.seed);
  for (u32 i = 0; i < count; ++i) {
    const Size3 grid = launches[i].threadgroups;
    stage_.first.push_back(stage_.total);
    stage_.total += grid.x * grid.y * grid.z;
  }
  if (options.order == Order::forward && !options.shuffle_stage) return;
  for (u32 i = 0; i < stage_.total; ++i) {
    stage_.permutation.push_back(options.order == Order::reverse ? stage_.total - 1 - i : i);
  }
  if (options.shuffle_stage) {
    std::shuffle(stage_.permutation.begin(), stage_.permutation.end(), random);
  } else if (options.order == Order::random) {
    for (u32 i = 0; i < count; ++i) {
      const u32 end = i + 1 < count ? stage_.first[i + 1] : stage_.total;
      std::shuffle(stage_.permutation.begin() + stage_.first[i], stage_.permutation.begin() + end, random);
    }
  }
}

void Runner::run_stage(Launch* launches, u32 count, const RunOptions& options, Report& report) {
  report.text[0] = '\0';
  prepare(launches, count, options);
  checker_begin_stage(launches, count, options);
  report_ = &report;
  const bool parallel = stage_.total > 1 && !threads_.empty();
  if (parallel) {
    {
      const std::scoped_lock lock(mutex_);
      ++generation_;
      running_ = static_cast<u32>(threads_.size());
    }
    started_.notify_all();
  }
  {
    const SignalStack signal_stack;
    work(*workers_[0], 0);
  }
  if (parallel) {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return running_ == 0; });
  }
  checker_end_stage(report);
}

void Runner::work(Worker& worker, u32 worker_index) {
  const RunOptions& options = *stage_.options;
  worker.set_order(options.order, options.seed + worker_index);
  while (!stage_.failed) {
    const u32 ticket = stage_.next++;
    if (ticket >= stage_.total) return;
    const u32 linear = stage_.permutation.empty() ? ticket : stage_.permutation[ticket];
    const auto after = std::upper_bound(stage_.first.begin(), stage_.first.end(), linear);
    const auto index = static_cast<std::size_t>(after - stage_.first.begin()) - 1;
    checker_begin_launch(&stage_.launches[index]);
    worker.run(stage_.launches[index], linear - stage_.first[index], linear);
    if (worker.failed() && !stage_.failed.exchange(true)) {
      std::snprintf(report_->text, sizeof report_->text, "%s", worker.message());
    }
  }
}

void Runner::thread_main(u32 worker_index) {
  const SignalStack signal_stack;
  std::uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      started_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) return;
      seen = generation_;
    }
    work(*workers_[worker_index], worker_index);
    const std::scoped_lock lock(mutex_);
    if (--running_ == 0) finished_.notify_one();
  }
}

namespace {

Runner* create_runner(u32 workers) { return std::make_unique<Runner>(workers).release(); }
void destroy_runner(Runner* runner) { const std::unique_ptr<Runner> owner(runner); }
void run_stage(Runner* runner, Launch* launches, u32 count, const RunOptions& options, Report& report) {
  runner->run_stage(launches, count, options, report);
}

}  // namespace
}  // namespace lily_sim

extern "C" __attribute__((visibility("default"))) const lily_sim::Library* lily_sim_library() {
  static const lily_sim::Library library = {
      lily_sim::kAbiVersion,    lily_sim::kChecked,  lily_sim::entry_lists,     lily_sim::create_runner,
      lily_sim::destroy_runner, lily_sim::run_stage, lily_sim::checker_release, lily_sim::checker_load_lines};
  return &library;
}
