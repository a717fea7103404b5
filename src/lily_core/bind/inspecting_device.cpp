// bind/inspecting_device.cpp -- a device that shows single launches of the engine's passes to Python, with the memory
// they read and wrote: `lily verify` uses it to compare kernels with references, on the launches and weights of a real
// model.
#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "bind/bind.h"
#include "device/forwarding_device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using device::BufferBinding;
using device::Dispatch;

// Another device's pipeline, with the constants it was made with.
class ShownPipeline final : public device::Pipeline {
 public:
  ShownPipeline(const device::Pipeline& inner, std::span<const device::FunctionConstant> constants) : inner_(inner) {
    for (const device::FunctionConstant& constant : constants) constants_[constant.index] = constant.value;
  }
  [[nodiscard]] const std::string& name() const override { return inner_.name(); }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override {
    return inner_.max_threads_per_threadgroup();
  }
  [[nodiscard]] std::span<const device::SlotUse> slots() const override { return inner_.slots(); }
  [[nodiscard]] const device::Pipeline& inner() const { return inner_; }
  [[nodiscard]] nb::dict constants() const {
    nb::dict values;
    for (const auto& [index, value] : constants_) values[nb::int_(index)] = value;
    return values;
  }

 private:
  const device::Pipeline& inner_;
  std::map<std::uint32_t, std::int32_t> constants_;
};

class FinishedTicket final : public device::Ticket {
 public:
  explicit FinishedTicket(device::PassResult result) : result_(std::move(result)) {}
  [[nodiscard]] bool done() override { return true; }
  device::PassResult wait() override { return result_; }

 private:
  device::PassResult result_;
};

// The bytes of a dispatch's bindings, each range once.
class Contents {
 public:
  nb::bytes of(const BufferBinding& binding) {
    auto& found = ranges_[{binding.buffer, binding.offset, binding.size}];
    if (!found.is_valid()) {
      std::vector<std::byte> bytes(binding.size);
      binding.buffer->read(binding.offset, bytes);
      found = nb::bytes(bytes.data(), bytes.size());
    }
    return nb::borrow<nb::bytes>(found);
  }

 private:
  std::map<std::tuple<const device::Buffer*, std::uint64_t, std::uint64_t>, nb::object> ranges_;
};

class InspectingDevice final : public device::ForwardingDevice {
 public:
  InspectingDevice(std::shared_ptr<device::Device> inner, nb::object wants, nb::object show)
      : ForwardingDevice(std::move(inner)), wants_(std::move(wants)), show_(std::move(show)) {}
  ~InspectingDevice() override {
    const nb::gil_scoped_acquire gil;
    wants_.reset();
    show_.reset();
  }
  InspectingDevice(const InspectingDevice&) = delete;
  InspectingDevice& operator=(const InspectingDevice&) = delete;

  [[nodiscard]] const device::Pipeline& pipeline(const std::string& kernel,
                                                 std::span<const device::FunctionConstant> constants) override {
    const device::Pipeline& made = inner().pipeline(kernel, constants);
    const std::scoped_lock lock(mutex_);
    auto& found = pipelines_[&made];
    if (found == nullptr) found = std::make_unique<ShownPipeline>(made, constants);
    return *found;
  }
  [[nodiscard]] std::unique_ptr<device::Ticket> submit(std::span<const device::Stage> stages) override {
    device::PassResult result;
    for (const device::Stage& stage : stages) {
      for (const Dispatch& dispatch : stage.dispatches) {
        if (result.error.empty()) run(dispatch, result);
      }
    }
    return std::make_unique<FinishedTicket>(std::move(result));
  }

 private:
  void run(const Dispatch& dispatch, device::PassResult& result) {
    const auto& pipeline = static_cast<const ShownPipeline&>(*dispatch.pipeline);
    Dispatch alone = dispatch;
    alone.pipeline = &pipeline.inner();
    const nb::gil_scoped_acquire gil;
    try {
      const bool wanted = nb::cast<bool>(wants_(pipeline.name(), pipeline.constants()));
      nb::dict before;
      if (wanted) {
        Contents contents;
        for (const BufferBinding& binding : dispatch.buffers) before[nb::int_(binding.index)] = contents.of(binding);
      }
      submit_alone(alone, result);
      if (!wanted || !result.error.empty()) return;
      Contents contents;
      nb::dict after;
      for (const BufferBinding& binding : dispatch.buffers) {
        if (binding.written) after[nb::int_(binding.index)] = contents.of(binding);
      }
      show_(pipeline.name(), pipeline.constants(), before, after,
            nb::bytes(dispatch.bytes.data(), dispatch.bytes.size()));
    } catch (nb::python_error& error) {
      result.error = error.what();
    }
  }

  void submit_alone(const Dispatch& dispatch, device::PassResult& result) {
    const nb::gil_scoped_release released;
    const std::vector<device::Stage> stages = {{{dispatch}}};
    const device::PassResult one = inner().submit(stages)->wait();
    result.gpu_seconds += one.gpu_seconds;
    result.error = one.error;
    result.kind = one.kind;
  }

  nb::object wants_;
  nb::object show_;
  std::mutex mutex_;
  std::map<const device::Pipeline*, std::unique_ptr<ShownPipeline>> pipelines_;
};

}  // namespace

void bind_inspecting_device(nb::module_& devices) {
  nb::class_<InspectingDevice, device::Device>(
      devices, "InspectingDevice",
      "Runs launches one at a time, and shows those that wants(kernel, constants) asks for:\n"
      "show(kernel, constants, {slot: bytes before}, {written slot: bytes after}, arguments).")
      .def(nb::init<std::shared_ptr<device::Device>, nb::object, nb::object>(), "device"_a, "wants"_a, "show"_a);
}

}  // namespace lily::bind
