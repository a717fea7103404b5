// tests/cpp/test_metal_submission.cpp -- how the Metal device submits passes, waits for them and takes failures, on a
// queue that ends command buffers when it is told to.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/metal/command_queue.h"
#include "device/metal/submission.h"
#include "named_pipeline.h"
#include "text.h"

namespace lily::device::metal {
namespace {

using namespace std::chrono_literals;

std::vector<Stage> pass_of(std::size_t stages, const Pipeline& pipeline, std::uint32_t groups = 3) {
  Dispatch dispatch;
  dispatch.pipeline = &pipeline;
  dispatch.threadgroups = {groups, 1, 1};
  dispatch.threads_per_threadgroup = 64;
  return std::vector<Stage>(stages, Stage{{dispatch}});
}

CommandOutcome failed(std::int64_t code) {
  return {.gpu_seconds = 0.0,
          .error = CommandError{.of_command_buffer = true, .code = code, .description = "text", .part = "part"}};
}

// Notes what is committed; the test ends command buffers in their order.
class ManualQueue final : public CommandQueue {
 public:
  struct Committed {
    std::size_t stages;
    std::string label;
    std::uint64_t after;
    std::uint64_t number;
    CommandEnd ended;
  };

  [[nodiscard]] EncoderLimits limits() const override { return {}; }
  void prepare() override { ++prepared; }
  [[nodiscard]] std::string commit(const CommandPart& part, CommandEnd ended) override {
    const std::scoped_lock lock(mutex);
    if (commits_left == 0) {
      if (throws) throw std::bad_alloc();
      return "no command buffer";
    }
    --commits_left;
    committed.push_back({part.stages.size(), part.label, part.after, part.number, std::move(ended)});
    changed.notify_all();
    return "";
  }
  void release(std::uint64_t number) noexcept override {
    const std::scoped_lock lock(mutex);
    released = std::max(released, number);
  }

  // Ends the oldest command buffer.
  void end(const CommandOutcome& outcome) {
    Committed oldest = [&] {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !committed.empty(); });
      Committed front = std::move(committed.front());
      committed.pop_front();
      return front;
    }();
    oldest.ended(outcome);
  }

  // Ends the newest command buffer, before those that it should have waited for.
  void end_newest(const CommandOutcome& outcome) {
    Committed newest = [&] {
      const std::scoped_lock lock(mutex);
      Committed back = std::move(committed.back());
      committed.pop_back();
      return back;
    }();
    newest.ended(outcome);
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Committed> committed;
  std::size_t commits_left = 1000000;
  bool throws = false;
  std::uint64_t released = 0;
  int prepared = 0;
};

// At the end of a test, ends what the queue still has: a submission waits for its passes, and so do threads. A failed
// test must come to its end, too.
class Drain {
 public:
  explicit Drain(ManualQueue& queue) : queue_(queue) {}
  ~Drain() {
    while (true) {
      {
        const std::scoped_lock lock(queue_.mutex);
        queue_.commits_left = 0;
        if (queue_.committed.empty()) return;
      }
      queue_.end({.gpu_seconds = 0.1, .error = std::nullopt});
    }
  }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  ManualQueue& queue_;
};

TEST_CASE("passes are a chain") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const Drain drain(*queue);
  const auto first = submission.submit(pass_of(150, kernel));  // unknown: parts of 64 stages
  const auto second = submission.submit(pass_of(1, kernel));
  REQUIRE_MESSAGE((queue->committed.size() == 4 && queue->prepared == 2), "three parts and one");
  std::size_t stages = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    const ManualQueue::Committed& part = queue->committed[i];
    REQUIRE_MESSAGE((part.after == i && part.number == i + 1), "each waits for the one before");
    stages += part.stages;
  }
  REQUIRE_MESSAGE((stages == 151 && queue->committed[1].label == "part 2 of 3"), "all stages, in parts");
  for (int i = 0; i < 3; ++i) {
    REQUIRE_MESSAGE(!first->done(), "not before its last part");
    queue->end({.gpu_seconds = 0.01, .error = std::nullopt});
  }
  REQUIRE_MESSAGE((first->done() && !second->done()), "one after the other");
  const PassResult result = first->wait();
  REQUIRE_MESSAGE((result.error.empty() && result.gpu_seconds > 0.029 && result.gpu_seconds < 0.031),
                  "the seconds of all parts");
  queue->end({.gpu_seconds = 0.5, .error = std::nullopt});
  REQUIRE_MESSAGE((second->wait().gpu_seconds == 0.5 && queue->released == 0), "nothing to release");
  // The first pass is known now to be short.
  const auto again = submission.submit(pass_of(150, kernel));
  REQUIRE_MESSAGE(queue->committed.size() == 1, "one command buffer");
  queue->end({.gpu_seconds = 0.01, .error = std::nullopt});
  REQUIRE_MESSAGE(again->wait().error.empty(), "completed");
}

// Should a system count the wait for the command buffer before as time on the GPU, the pass does not.
TEST_CASE("waiting for each other is no work") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const Drain drain(*queue);
  const auto first = submission.submit(pass_of(150, kernel));  // three parts, all "started" at second 10
  const auto second = submission.submit(pass_of(1, kernel));
  for (const double end : {10.1, 10.2, 10.3}) {
    queue->end({.gpu_seconds = end - 10.0, .gpu_end = end, .error = std::nullopt});
  }
  queue->end({.gpu_seconds = 0.35, .gpu_end = 10.35, .error = std::nullopt});
  const auto near = [](double actual, double expected) { return std::abs(actual - expected) < 1e-9; };
  REQUIRE_MESSAGE(near(first->wait().gpu_seconds, 0.3),
                  "the parts' own time: ", std::to_string(first->wait().gpu_seconds));
  REQUIRE_MESSAGE(near(second->wait().gpu_seconds, 0.05),
                  "and the next pass's: ", std::to_string(second->wait().gpu_seconds));
  // Reports may come in another order than the ends that they tell.
  const auto third = submission.submit(pass_of(1, kernel));
  const auto fourth = submission.submit(pass_of(1, kernel));
  const auto fifth = submission.submit(pass_of(1, kernel));
  queue->end({.gpu_seconds = 0.1, .gpu_end = 20.5, .error = std::nullopt});
  queue->end({.gpu_seconds = 0.1, .gpu_end = 20.3, .error = std::nullopt});
  queue->end({.gpu_seconds = 0.2, .gpu_end = 20.6, .error = std::nullopt});
  REQUIRE_MESSAGE(near(third->wait().gpu_seconds, 0.1), "the first report");
  REQUIRE_MESSAGE(fourth->wait().gpu_seconds == 0.0,
                  "never below nothing: ", std::to_string(fourth->wait().gpu_seconds));
  REQUIRE_MESSAGE(near(fifth->wait().gpu_seconds, 0.1),
                  "from the latest end on: ", std::to_string(fifth->wait().gpu_seconds));
  const auto later = submission.submit(pass_of(2, kernel));  // a pause before it is no work either
  queue->end({.gpu_seconds = 0.2, .gpu_end = 99.0, .error = std::nullopt});
  REQUIRE_MESSAGE(near(later->wait().gpu_seconds, 0.2), "time that nobody waited");
}

TEST_CASE("a failed part releases all who wait") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const auto pass = submission.submit(pass_of(150, kernel));
  const auto behind = submission.submit(pass_of(2, kernel));
  std::atomic<int> released = 0;
  std::vector<std::jthread> waiters;
  const Drain drain(*queue);  // goes before the threads that wait
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] {
      const PassResult result = pass->wait();
      if (contains(result.error, "ran too long") && result.kind == ErrorKind::backend) ++released;
    });
  }
  queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
  queue->end(failed(2));
  REQUIRE_MESSAGE(queue->released == 2, "the event goes on, as the command buffer did not signal it");
  queue->end(failed(8));
  for (std::jthread& waiter : waiters) waiter.join();
  REQUIRE_MESSAGE(released == 3, "all have the first error");
  queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
  REQUIRE_MESSAGE(behind->wait().error.empty(), "the pass behind is not touched by it");
  const auto after = submission.submit(pass_of(150, kernel));
  REQUIRE_MESSAGE(queue->committed.size() == 3, "a failed pass says nothing about how long passes take");
  for (int i = 0; i < 3; ++i) queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
  REQUIRE_MESSAGE(after->wait().error.empty(), "the device goes on");
}

TEST_CASE("out of memory is a memory error") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const Drain drain(*queue);
  const auto pass = submission.submit(pass_of(1, kernel));
  queue->end(failed(8));
  const PassResult result = pass->wait();
  REQUIRE_MESSAGE((result.kind == ErrorKind::memory_limit && contains(result.error, "max_context")), result.error);
}

TEST_CASE("a lost device takes no pass") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const Drain drain(*queue);
  const auto pass = submission.submit(pass_of(1, kernel));
  queue->end(failed(11));
  REQUIRE_MESSAGE(contains(pass->wait().error, "loaded again"), "what happened");
  const auto later = submission.submit(pass_of(1, kernel));
  REQUIRE_MESSAGE((later->done() && contains(later->wait().error, "was lost by an earlier pass")), "refused at once");
  REQUIRE_MESSAGE(queue->committed.empty(), "nothing was committed");
}

// What was committed before the failure is waited for: its memory is in use.
TEST_CASE("a pass that is committed in part") {
  const NamedPipeline kernel("kernel");
  for (const bool throws : {false, true}) {
    const auto queue = std::make_shared<ManualQueue>();
    Submission submission(queue);
    const Drain drain(*queue);
    queue->commits_left = 2;
    queue->throws = throws;
    const auto pass = submission.submit(pass_of(300, kernel));  // five parts
    REQUIRE_MESSAGE((!pass->done() && queue->committed.size() == 2), "two parts run");
    queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
    queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
    const PassResult result = pass->wait();
    REQUIRE_MESSAGE(contains(result.error, throws ? "no memory" : "no command buffer"), "why: ", result.error);
    REQUIRE_MESSAGE(result.kind == (throws ? ErrorKind::memory_limit : ErrorKind::backend), "of which kind");
    queue->commits_left = 10;
    const auto next = submission.submit(pass_of(1, kernel));
    REQUIRE_MESSAGE((queue->committed.front().after == 2 && queue->committed.front().number == 3),
                    "the chain has no gap");
    queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
    REQUIRE_MESSAGE(next->wait().error.empty(), "the device goes on");
  }
}

TEST_CASE("a wrong dispatch is refused") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  const Drain drain(*queue);
  std::vector<Stage> stages = pass_of(2, kernel);
  stages[1].dispatches[0].threads_per_threadgroup = 512;
  const auto pass = submission.submit(stages);
  REQUIRE_MESSAGE((pass->done() && contains(pass->wait().error, "more than the 256") && queue->committed.empty()),
                  "refused");
}

TEST_CASE("the end waits for every pass") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  auto submission = std::make_unique<Submission>(queue);
  const Drain drain(*queue);
  std::atomic<int> ended = 0;
  const auto first = submission->submit(pass_of(1, kernel));
  const auto second = submission->submit(pass_of(1, kernel));
  const std::jthread gpu([&] {
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(10ms);
      ++ended;
      queue->end(i == 0 ? failed(3) : CommandOutcome{.gpu_seconds = 0.1, .error = std::nullopt});
    }
  });
  submission.reset();
  REQUIRE_MESSAGE(ended == 2, "both had ended");
}

// What comes later may end first, and whoever asks for it learns that it has: the earlier pass still uses its memory.
TEST_CASE("the end waits for a pass that others overtook") {
  const NamedPipeline kernel("kernel");
  for (const int later_passes : {1, 2}) {
    const auto queue = std::make_shared<ManualQueue>();
    auto submission = std::make_unique<Submission>(queue);
    const Drain drain(*queue);
    const auto earlier = submission->submit(pass_of(1, kernel));
    for (int i = 0; i < later_passes; ++i) {
      const auto later = submission->submit(pass_of(1, kernel));
      queue->end_newest({.gpu_seconds = 0.1, .error = std::nullopt});
      REQUIRE_MESSAGE((later->done() && !earlier->done()), "the later one has ended, the earlier one has not");
    }
    std::atomic<bool> ended = false;
    const std::jthread gpu([&] {
      std::this_thread::sleep_for(30ms);
      ended = true;
      queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
    });
    submission.reset();
    REQUIRE_MESSAGE(ended, "the earlier pass had ended");
  }
}

TEST_CASE("a forked child waits for nothing") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  auto submission = std::make_unique<Submission>(queue);
  const Drain drain(*queue);
  const auto over = submission->submit(pass_of(1, kernel));
  queue->end({.gpu_seconds = 0.25, .error = std::nullopt});
  const auto pass = submission->submit(pass_of(1, kernel));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends a child that hangs
    const bool waited = contains(pass->wait().error, "forked");
    const bool completed = over->done() && over->wait().error.empty() && over->wait().gpu_seconds == 0.25;
    const bool refused = contains(submission->submit(pass_of(1, kernel))->wait().error, "forked");
    submission.reset();
    ::_exit(waited && completed && refused ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  queue->end({.gpu_seconds = 0.1, .error = std::nullopt});
  REQUIRE_MESSAGE((WIFEXITED(status) && WEXITSTATUS(status) == 0), "the child ended by itself, and knew what was over");
  REQUIRE_MESSAGE(pass->wait().error.empty(), "the parent's pass is not touched by it");
}

// Threads submit and wait while command buffers end, some with errors: each pass has its own fate, and nobody hangs.
TEST_CASE("many threads") {
  const NamedPipeline kernel("kernel");
  const auto queue = std::make_shared<ManualQueue>();
  Submission submission(queue);
  constexpr int kThreads = 4;
  constexpr int kPasses = 50;
  std::atomic<bool> over = false;
  std::atomic<int> errors = 0;
  std::atomic<int> completed = 0;
  std::thread gpu([&] {
    std::mt19937 random(7);
    while (!over) {
      bool idle = false;
      {
        const std::scoped_lock lock(queue->mutex);
        idle = queue->committed.empty();
      }
      if (idle) {
        std::this_thread::sleep_for(50us);
        continue;
      }
      if (random() % 7 == 0) {
        queue->end(failed(2));
      } else {
        queue->end({.gpu_seconds = 1e-3, .error = std::nullopt});
      }
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int pass = 0; pass < kPasses; ++pass) {
        const auto stages = static_cast<std::size_t>(1 + (pass * 37 + i) % 200);
        const auto ticket = submission.submit(pass_of(stages, kernel, static_cast<std::uint32_t>(i + 1)));
        (ticket->wait().error.empty() ? completed : errors)++;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  gpu.join();
  REQUIRE_MESSAGE((completed + errors == kThreads * kPasses && completed > 0 && errors > 0),
                  "all ended, some with errors");
}

}  // namespace
}  // namespace lily::device::metal
