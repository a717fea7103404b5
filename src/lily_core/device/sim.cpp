// device/sim.cpp -- buffers, pipelines and passes of the sim device.
#include "device/sim.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "device/pipeline_key.h"
#include "device/sim/kernel_library.h"
#include "device/sim/sim_buffer.h"
#include "device/sim/sim_pipeline.h"
#include "device/sim/stage_checks.h"

namespace lily::device {
namespace {

constexpr std::uint32_t kMaxWorkers = 16;

std::uint32_t worker_count(const SimOptions& options) {
  const std::uint32_t wanted = options.workers > 0 ? options.workers : std::thread::hardware_concurrency();
  return std::clamp(wanted, 1u, kMaxWorkers);
}

// A pass that is complete before anyone asks.
class FinishedTicket final : public Ticket {
 public:
  explicit FinishedTicket(PassResult result) : result_(std::move(result)) {}
  [[nodiscard]] bool done() override { return true; }
  PassResult wait() override { return result_; }

 private:
  PassResult result_;
};

std::vector<lily_sim::Binding> make_bindings(const Dispatch& dispatch) {
  std::vector<lily_sim::Binding> bindings;
  for (const BufferBinding& binding : dispatch.buffers) {
    bindings.push_back({.index = binding.index,
                        .memory = &static_cast<sim::SimBuffer*>(binding.buffer)->memory(),
                        .offset = binding.offset,
                        .size = binding.size,
                        .written = binding.written,
                        .read_range = {},
                        .written_range = {}});
  }
  return bindings;
}

lily_sim::Launch make_launch(const Dispatch& dispatch, std::vector<lily_sim::Binding>& bindings) {
  const auto& pipeline = static_cast<const sim::SimPipeline&>(*dispatch.pipeline);
  const Size3 grid = dispatch.threadgroups;
  lily_sim::Launch launch = {};
  launch.entry = &pipeline.entry();
  launch.bindings = bindings.data();
  launch.binding_count = static_cast<lily_sim::u32>(bindings.size());
  launch.bytes_index = dispatch.bytes_index;
  launch.bytes = dispatch.bytes.data();
  launch.bytes_size = dispatch.bytes.size();
  std::copy(pipeline.constants().begin(), pipeline.constants().end(), launch.constants);
  launch.threadgroup_bytes = dispatch.threadgroup_bytes;
  launch.threadgroups = {grid.x, grid.y, grid.z};
  launch.threads = dispatch.threads_per_threadgroup;
  return launch;
}

}  // namespace

SimDevice::SimDevice(SimOptions options)
    : options_(std::move(options)),
      library_(std::make_shared<sim::KernelLibrary>(options_.library, options_.checked)),
      allocated_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
  runner_ = library_->api().create_runner(worker_count(options_));
}

SimDevice::~SimDevice() { library_->api().destroy_runner(runner_); }

std::string SimDevice::name() const { return options_.checked ? "sim, checked" : "sim"; }

std::shared_ptr<Buffer> SimDevice::allocate(std::uint64_t size, BufferStorage storage, std::string label) {
  const bool poison = options_.poison_allocations || options_.checked;
  return std::make_shared<sim::SimBuffer>(library_, allocated_, size, storage, poison, std::move(label));
}

std::shared_ptr<Buffer> SimDevice::wrap(const std::byte* data, std::uint64_t size, std::string label,
                                        const CopyProgress& /*progress*/) {
  return std::make_shared<sim::SimBuffer>(library_, data, size, std::move(label));
}

const Pipeline& SimDevice::pipeline(const std::string& kernel, std::span<const FunctionConstant> constants) {
  const std::scoped_lock lock(mutex_);
  const std::string key = pipeline_key(kernel, constants);
  auto found = pipelines_.find(key);
  if (found == pipelines_.end()) {
    const lily_sim::Entry* entry = library_->find(kernel);
    if (entry == nullptr) {
      throw Error(ErrorKind::backend, "there is no kernel '" + kernel + "' in " + library_->path().string());
    }
    found = pipelines_.emplace(key, std::make_unique<sim::SimPipeline>(*entry, constants)).first;
  }
  return *found->second;
}

std::vector<std::string> SimDevice::kernel_names() const { return library_->names(); }

void SimDevice::run_stage(const Stage& stage, std::uint32_t number) {
  for (const Dispatch& dispatch : stage.dispatches) {
    const std::string problem = sim::check_dispatch(dispatch);
    if (!problem.empty()) throw Error(ErrorKind::backend, problem);
  }
  const std::string hazard = sim::check_hazards(stage);
  if (!hazard.empty()) throw Error(ErrorKind::backend, hazard);
  std::vector<std::vector<lily_sim::Binding>> bindings;
  for (const Dispatch& dispatch : stage.dispatches) bindings.push_back(make_bindings(dispatch));
  std::vector<lily_sim::Launch> launches;
  for (std::size_t i = 0; i < bindings.size(); ++i) launches.push_back(make_launch(stage.dispatches[i], bindings[i]));
  const lily_sim::RunOptions options = {.order = static_cast<lily_sim::Order>(options_.order),
                                        .seed = options_.seed + stages_run_++,
                                        .shuffle_stage = options_.shuffle_stage,
                                        .check_declared_ranges = options_.check_declared_ranges};
  const auto report = std::make_unique<lily_sim::Report>();
  library_->api().run_stage(runner_, launches.data(), static_cast<lily_sim::u32>(launches.size()), options, *report);
  for (std::size_t i = 0; options_.checked && i < bindings.size(); ++i) {
    for (const lily_sim::Binding& binding : bindings[i]) {
      accesses_.push_back({.stage = number,
                           .dispatch = static_cast<std::uint32_t>(i),
                           .index = binding.index,
                           .read_begin = binding.read_range.begin,
                           .read_end = binding.read_range.end,
                           .written_begin = binding.written_range.begin,
                           .written_end = binding.written_range.end});
    }
  }
  if (report->text[0] != '\0') throw Error(ErrorKind::backend, report->text);
}

std::unique_ptr<Ticket> SimDevice::submit(std::span<const Stage> stages) {
  const std::scoped_lock lock(mutex_);
  const auto start = std::chrono::steady_clock::now();
  PassResult result;
  accesses_.clear();
  try {
    for (std::size_t i = 0; i < stages.size(); ++i) run_stage(stages[i], static_cast<std::uint32_t>(i));
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.gpu_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::make_unique<FinishedTicket>(std::move(result));
}

}  // namespace lily::device
