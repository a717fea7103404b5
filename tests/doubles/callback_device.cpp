// doubles/callback_device.cpp -- a device whose kernels are a Python function, to test passes on reference kernels.
//
// Passes run when somebody waits for them, as late as a device may: what the host changes too early is noticed.
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "device/device.h"
#include "device/pipeline_key.h"
#include "doubles.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::doubles {
namespace {

using device::BufferStorage;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;

class HostBuffer final : public device::Buffer {
 public:
  HostBuffer(std::uint64_t size, BufferStorage storage, std::string label)
      : owned_(size, std::byte{0xff}),  // not a number, until written
        data_(owned_.data()),
        size_(size),
        storage_(storage),
        label_(std::move(label)) {}
  HostBuffer(const std::byte* data, std::uint64_t size, std::string label)
      : data_(const_cast<std::byte*>(data)), size_(size), storage_(BufferStorage::private_), label_(std::move(label)) {}

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::byte* contents() override { return storage_ == BufferStorage::shared ? data_ : nullptr; }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), data_ + offset, out.size());
  }
  void write(std::uint64_t offset, std::span<const std::byte> values) override {
    std::memcpy(data_ + offset, values.data(), values.size());
  }
  void clear() override { std::memset(data_, 0, size_); }
  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] std::byte* memory() { return data_; }

 private:
  std::vector<std::byte> owned_;
  std::byte* data_;
  std::uint64_t size_;
  BufferStorage storage_;
  std::string label_;
};

class NamedPipeline final : public device::Pipeline {
 public:
  NamedPipeline(std::string name, std::span<const device::FunctionConstant> constants) : name_(std::move(name)) {
    for (const device::FunctionConstant& constant : constants) constants_[constant.index] = constant.value;
  }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return 1024; }
  [[nodiscard]] std::span<const device::SlotUse> slots() const override { return {}; }
  [[nodiscard]] const std::map<std::uint32_t, std::int32_t>& constants() const { return constants_; }

 private:
  std::string name_;
  std::map<std::uint32_t, std::int32_t> constants_;
};

class CallbackDevice;

class CallbackTicket final : public device::Ticket {
 public:
  CallbackTicket(CallbackDevice& device, std::uint64_t number) : device_(device), number_(number) {}
  [[nodiscard]] bool done() override;
  device::PassResult wait() override;

 private:
  CallbackDevice& device_;
  std::uint64_t number_;
};

class CallbackDevice final : public device::Device {
 public:
  explicit CallbackDevice(nb::object run_stage) : run_stage_(std::move(run_stage)) {}
  ~CallbackDevice() override {
    const nb::gil_scoped_acquire gil;
    run_stage_.reset();
  }
  CallbackDevice(const CallbackDevice&) = delete;
  CallbackDevice& operator=(const CallbackDevice&) = delete;

  [[nodiscard]] std::string name() const override { return "callback (sim)"; }
  [[nodiscard]] bool limits_pass_time() const override { return false; }
  [[nodiscard]] std::shared_ptr<device::Buffer> allocate(std::uint64_t size, BufferStorage storage,
                                                         std::string label) override {
    if (size > allocation_limit) throw Error(ErrorKind::memory_limit, "no memory for " + label);
    return std::make_shared<HostBuffer>(size, storage, std::move(label));
  }
  [[nodiscard]] std::shared_ptr<device::Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                                     const CopyProgress& progress) override {
    if (!copies) return std::make_shared<HostBuffer>(data, size, std::move(label));
    auto buffer = std::make_shared<HostBuffer>(size, BufferStorage::private_, std::move(label));
    buffer->write(0, {data, size});
    if (progress) progress(size, size);
    return buffer;
  }
  [[nodiscard]] bool copies_wrapped() const override { return copies; }
  [[nodiscard]] const device::Pipeline& pipeline(const std::string& kernel,
                                                 std::span<const device::FunctionConstant> constants) override {
    auto& found = pipelines_[device::pipeline_key(kernel, constants)];
    if (found == nullptr) found = std::make_unique<NamedPipeline>(kernel, constants);
    return *found;
  }
  [[nodiscard]] std::unique_ptr<device::Ticket> submit(std::span<const device::Stage> stages) override {
    queue_.emplace_back(stages.begin(), stages.end());
    events.push_back("submit " + std::to_string(submitted_));
    return std::make_unique<CallbackTicket>(*this, submitted_++);
  }
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return 0; }
  [[nodiscard]] std::uint64_t memory_limit() const override { return memory_limit_bytes; }
  [[nodiscard]] std::string memory_limit_remedy(std::uint64_t bytes) const override {
    return "make the limit " + std::to_string(bytes);
  }
  [[nodiscard]] bool has_tensor_gemm() override { return tensor_gemm; }

  [[nodiscard]] bool is_done(std::uint64_t number) const { return number < finished_; }
  // Runs every pass up to this one.
  device::PassResult finish(std::uint64_t number) {
    events.push_back("wait " + std::to_string(number));
    for (; finished_ <= number; ++finished_) {
      std::string error = finished_ >= failing_from ? "injected failure" : run(queue_.front());
      if (!error.empty()) errors_[finished_] = error;
      queue_.pop_front();
    }
    const auto failed = errors_.find(number);
    return {.gpu_seconds = 1e-3, .error = failed == errors_.end() ? "" : failed->second};
  }

  std::vector<std::string> events;  // "submit n" and "wait n", in order
  std::uint64_t failing_from = ~std::uint64_t{0};
  std::uint64_t allocation_limit = ~std::uint64_t{0};
  std::uint64_t memory_limit_bytes = 0;
  bool tensor_gemm = false;
  bool copies = false;  // what is wrapped, as a GPU with memory of
                        // its own does
  [[nodiscard]] std::uint64_t submitted() const { return submitted_; }

 private:
  // The error of the pass, empty when it completed.
  std::string run(const std::vector<device::Stage>& stages) {
    const nb::gil_scoped_acquire gil;
    try {
      for (const device::Stage& stage : stages) {
        nb::list launches;
        for (const device::Dispatch& dispatch : stage.dispatches) launches.append(launch(dispatch));
        run_stage_(launches);
      }
    } catch (nb::python_error& error) {
      return error.what();
    }
    return "";
  }

  // (kernel, constants, {slot: (bytes, written)}, arguments and
  // their slot, grid, threads)
  static nb::tuple launch(const device::Dispatch& dispatch) {
    const auto& pipeline = static_cast<const NamedPipeline&>(*dispatch.pipeline);
    nb::dict slots;
    for (const device::BufferBinding& binding : dispatch.buffers) {
      auto& buffer = static_cast<HostBuffer&>(*binding.buffer);
      if (binding.offset > buffer.size() || binding.size > buffer.size() - binding.offset) {
        throw Error(ErrorKind::backend, pipeline.name() + ": a binding leaves its buffer");
      }
      const Bytes view(buffer.memory() + binding.offset, {static_cast<std::size_t>(binding.size)}, nb::handle());
      slots[nb::int_(binding.index)] = nb::make_tuple(nb::cast(view, nb::rv_policy::reference), binding.written);
    }
    return nb::make_tuple(pipeline.name(), pipeline.constants(), slots,
                          nb::bytes(dispatch.bytes.data(), dispatch.bytes.size()), dispatch.bytes_index,
                          nb::make_tuple(dispatch.threadgroups.x, dispatch.threadgroups.y, dispatch.threadgroups.z),
                          dispatch.threads_per_threadgroup);
  }

  nb::object run_stage_;
  std::map<std::string, std::unique_ptr<NamedPipeline>> pipelines_;
  std::deque<std::vector<device::Stage>> queue_;
  std::uint64_t submitted_ = 0;
  std::uint64_t finished_ = 0;
  std::map<std::uint64_t, std::string> errors_;
};

bool CallbackTicket::done() { return device_.is_done(number_); }
device::PassResult CallbackTicket::wait() { return device_.finish(number_); }

}  // namespace

void bind_callback_device(nb::module_& module) {
  nb::class_<CallbackDevice, device::Device>(module, "CallbackDevice",
                                             "A device whose kernels are a Python function; not thread-safe.")
      .def(nb::init<nb::object>(), "run_stage"_a)
      .def_ro("events", &CallbackDevice::events)
      .def_prop_ro("submitted", &CallbackDevice::submitted)
      .def_rw("failing_from", &CallbackDevice::failing_from)
      .def_rw("allocation_limit", &CallbackDevice::allocation_limit)
      .def_rw("memory_limit", &CallbackDevice::memory_limit_bytes)
      .def_rw("tensor_gemm", &CallbackDevice::tensor_gemm)
      .def_rw("copies", &CallbackDevice::copies);
}

}  // namespace lily::doubles
