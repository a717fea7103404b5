// doubles/rehearsed_device.cpp -- a thread that runs command buffers in the order of their event.
#include "rehearsed_device.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <optional>

#include "device/metal/run_on_threads.h"
#include "device/pipeline_key.h"

namespace lily::device::metal {
namespace {

constexpr std::size_t kCompilingThreads = 4;

// Keeps its share of the budget as long as the buffer lives.
struct CountedBuffer {
  std::unique_ptr<BudgetShare> share;
  std::shared_ptr<Buffer> buffer;
};

std::shared_ptr<Buffer> counted(std::unique_ptr<BudgetShare> share, std::shared_ptr<Buffer> buffer) {
  auto both = std::make_shared<CountedBuffer>(std::move(share), std::move(buffer));
  return {both, both->buffer.get()};
}

}  // namespace

class RehearsedQueue final : public CommandQueue {
 public:
  explicit RehearsedQueue(std::shared_ptr<Device> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] EncoderLimits limits() const override { return {}; }
  void prepare() override {}

  [[nodiscard]] std::string commit(const CommandPart& part, CommandEnd ended) override {
    Commands commands{.stages = {part.stages.begin(), part.stages.end()},
                      .label = part.label,
                      .after = part.after,
                      .number = part.number,
                      .ended = std::move(ended)};
    const std::scoped_lock lock(mutex_);
    committed_.push_back(std::move(commands));
    changed_.notify_all();
    return "";
  }

  void release(std::uint64_t number) noexcept override {
    const std::scoped_lock lock(mutex_);
    event_ = std::max(event_, number);
    changed_.notify_all();
  }

  void fail_after(std::uint64_t count, CommandError error, bool lasting) {
    const std::scoped_lock lock(mutex_);
    failure_ = Failure{.left = count, .error = std::move(error), .lasting = lasting};
  }

  void recover() {
    const std::scoped_lock lock(mutex_);
    failure_.reset();
  }

  void stop() {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }

  // On a thread of its own, until stop().
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || can_start(); });
      if (stopping_) return;
      Commands commands = std::move(committed_.front());
      committed_.pop_front();
      const std::optional<CommandError> error = next_failure(commands.label);
      lock.unlock();
      const CommandOutcome outcome =
          error.has_value() ? CommandOutcome{.gpu_seconds = 0.0, .error = error} : run_commands(commands);
      if (!outcome.error.has_value()) release(commands.number);
      commands.ended(outcome);
      lock.lock();
    }
  }

 private:
  struct Commands {
    std::vector<Stage> stages;
    std::string label;
    std::uint64_t after;
    std::uint64_t number;
    CommandEnd ended;
  };
  struct Failure {
    std::uint64_t left;
    CommandError error;
    bool lasting;
  };

  [[nodiscard]] bool can_start() const { return !committed_.empty() && committed_.front().after <= event_; }

  std::optional<CommandError> next_failure(const std::string& label) {
    if (!failure_.has_value()) return std::nullopt;
    if (failure_->left > 0) {
      --failure_->left;
      return std::nullopt;
    }
    CommandError error = failure_->error;
    error.part = label;
    if (!failure_->lasting) failure_.reset();
    return error;
  }

  CommandOutcome run_commands(const Commands& commands) {
    const PassResult result = inner_->submit(commands.stages)->wait();
    CommandOutcome outcome{.gpu_seconds = result.gpu_seconds, .error = std::nullopt};
    if (!result.error.empty()) {
      outcome.error =
          CommandError{.of_command_buffer = false, .code = 0, .description = result.error, .part = commands.label};
    }
    return outcome;
  }

  std::shared_ptr<Device> inner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Commands> committed_;
  std::uint64_t event_ = 0;
  std::optional<Failure> failure_;
  bool stopping_ = false;
};

RehearsedDevice::RehearsedDevice(std::shared_ptr<Device> inner, MemoryLimits limits)
    : ForwardingDevice(inner),
      budget_(std::make_shared<MemoryBudget>(limits)),
      queue_(std::make_shared<RehearsedQueue>(std::move(inner))),
      runner_([queue = queue_] { queue->run(); }),
      submission_(std::make_unique<Submission>(queue_)) {}

RehearsedDevice::~RehearsedDevice() {
  submission_.reset();
  queue_->stop();
  runner_.join();
}

std::shared_ptr<Buffer> RehearsedDevice::allocate(std::uint64_t size, BufferStorage storage, std::string label) {
  auto share = std::make_unique<BudgetShare>(budget_, size, false, label);
  return counted(std::move(share), inner().allocate(size, storage, std::move(label)));
}

std::shared_ptr<Buffer> RehearsedDevice::wrap(const std::byte* data, std::uint64_t size, std::string label,
                                              const CopyProgress& progress) {
  auto share = std::make_unique<BudgetShare>(budget_, size, true, label);
  return counted(std::move(share), inner().wrap(data, size, std::move(label), progress));
}

const Pipeline& RehearsedDevice::pipeline(const std::string& kernel, std::span<const FunctionConstant> constants) {
  {
    const std::string key = pipeline_key(kernel, constants);
    const std::scoped_lock lock(mutex_);
    if (!ahead_.contains(key)) late_.insert(key);
  }
  return inner().pipeline(kernel, constants);
}

void RehearsedDevice::compile(std::span<const PipelineRequest> requests, const CompileProgress& progress) {
  const auto work = [&](std::size_t i) {
    static_cast<void>(inner().pipeline(requests[i].kernel, requests[i].constants));
    const std::scoped_lock lock(mutex_);
    ahead_.insert(pipeline_key(requests[i].kernel, requests[i].constants));
  };
  const auto tell = [&](std::size_t done) {
    if (progress) progress(done, requests.size());
  };
  run_on_threads(requests.size(), kCompilingThreads, work, tell);
}

std::unique_ptr<Ticket> RehearsedDevice::submit(std::span<const Stage> stages) { return submission_->submit(stages); }

void RehearsedDevice::fail_after(std::uint64_t count, CommandError error, bool lasting) {
  queue_->fail_after(count, std::move(error), lasting);
}

void RehearsedDevice::recover() { queue_->recover(); }

std::size_t RehearsedDevice::compiled_ahead() const {
  const std::scoped_lock lock(mutex_);
  return ahead_.size();
}

std::vector<std::string> RehearsedDevice::compiled_late() const {
  const std::scoped_lock lock(mutex_);
  return {late_.begin(), late_.end()};
}

}  // namespace lily::device::metal
