// bind/device.cpp -- devices, for the tests of single kernels: buffers as NumPy arrays, pipelines, passes.
#include "device/device.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>

#include "base/error.h"
#include "bind/bind.h"
#ifdef LILY_HAS_SIM
#include "device/sim.h"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using device::Buffer;
using device::BufferBinding;
using device::Device;
using device::Dispatch;
using device::Pipeline;
using device::Stage;

using Bytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>;
using ReadOnlyBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// Slot, buffer, offset, size, written.
using BindingTuple = std::tuple<std::uint32_t, std::shared_ptr<Buffer>, std::uint64_t, std::uint64_t, bool>;

Bytes contents(const std::shared_ptr<Buffer>& buffer) {
  if (buffer->contents() == nullptr) throw Error(ErrorKind::invalid_argument, "a private buffer has no contents");
  auto owner = std::make_unique<std::shared_ptr<Buffer>>(buffer);
  const nb::capsule capsule(owner.get(), [](void* data) noexcept {
    const std::unique_ptr<std::shared_ptr<Buffer>> released(static_cast<std::shared_ptr<Buffer>*>(data));
  });
  (void)owner.release();
  return Bytes(buffer->contents(), {static_cast<std::size_t>(buffer->size())}, capsule);
}

nb::bytes read(Buffer& buffer, std::uint64_t offset, std::uint64_t size) {
  std::vector<std::byte> bytes(size);
  buffer.read(offset, bytes);
  return nb::bytes(bytes.data(), bytes.size());
}

// Slot index and whether the kernel may write it.
std::vector<std::pair<std::uint32_t, bool>> slots(const Pipeline& pipeline) {
  std::vector<std::pair<std::uint32_t, bool>> pairs;
  for (const device::SlotUse& slot : pipeline.slots()) pairs.emplace_back(slot.index, slot.written);
  return pairs;
}

Dispatch make_dispatch(const Pipeline& pipeline, const std::vector<BindingTuple>& bindings, std::uint32_t bytes_index,
                       const nb::bytes& bytes, std::uint32_t threadgroup_bytes,
                       const std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>& threadgroups,
                       std::uint32_t threads) {
  Dispatch dispatch;
  dispatch.pipeline = &pipeline;
  for (const auto& [index, buffer, offset, size, written] : bindings) {
    dispatch.buffers.push_back(
        {.index = index, .buffer = buffer.get(), .offset = offset, .size = size, .written = written});
  }
  dispatch.bytes_index = bytes_index;
  dispatch.bytes.resize(bytes.size());
  if (bytes.size() > 0) std::memcpy(dispatch.bytes.data(), bytes.c_str(), bytes.size());
  dispatch.threadgroup_bytes = threadgroup_bytes;
  dispatch.threadgroups = {std::get<0>(threadgroups), std::get<1>(threadgroups), std::get<2>(threadgroups)};
  dispatch.threads_per_threadgroup = threads;
  return dispatch;
}

// Runs the pass and waits: seconds on the device and the error, empty when it completed.
std::pair<double, std::string> run(Device& device, const std::vector<std::vector<Dispatch>>& stages) {
  std::vector<Stage> pass;
  pass.reserve(stages.size());
  for (const std::vector<Dispatch>& dispatches : stages) pass.push_back({dispatches});
  const nb::gil_scoped_release released;
  const device::PassResult result = device.submit(pass)->wait();
  return {result.gpu_seconds, result.error};
}

const Pipeline& pipeline(Device& device, const std::string& kernel,
                         const std::vector<std::pair<std::uint32_t, std::int32_t>>& constants) {
  std::vector<device::FunctionConstant> values;
  values.reserve(constants.size());
  for (const auto& [index, value] : constants) values.push_back({index, value});
  return device.pipeline(kernel, values);
}

#ifdef LILY_HAS_SIM
device::ThreadOrder parse_order(const std::string& order) {
  if (order == "forward") return device::ThreadOrder::forward;
  if (order == "reverse") return device::ThreadOrder::reverse;
  if (order == "random") return device::ThreadOrder::random;
  throw Error(ErrorKind::invalid_argument, "order is 'forward', 'reverse' or 'random', not '" + order + "'");
}

using AccessTuple =
    std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

std::vector<AccessTuple> accesses(const device::SimDevice& device) {
  std::vector<AccessTuple> tuples;
  for (const device::SimAccess& access : device.accesses()) {
    tuples.emplace_back(access.stage, access.dispatch, access.index, access.read_begin, access.read_end,
                        access.written_begin, access.written_end);
  }
  return tuples;
}

void bind_sim(nb::module_& module) {
  nb::class_<device::SimDevice, Device>(module, "SimDevice", "The CPU as a device for Metal kernels, with checks.")
      .def(
          "__init__",
          [](device::SimDevice* self, bool checked, const std::string& order, std::uint64_t seed, bool shuffle_stage,
             bool check_declared_ranges, bool poison_allocations, std::uint32_t workers, const std::string& library) {
            new (self) device::SimDevice({.checked = checked,
                                          .order = parse_order(order),
                                          .seed = seed,
                                          .shuffle_stage = shuffle_stage,
                                          .check_declared_ranges = check_declared_ranges,
                                          .poison_allocations = poison_allocations,
                                          .workers = workers,
                                          .library = library});
          },
          nb::kw_only(), "checked"_a = false, "order"_a = "forward", "seed"_a = 0, "shuffle_stage"_a = false,
          "check_declared_ranges"_a = true, "poison_allocations"_a = false, "workers"_a = 0, "library"_a = "")
      .def("kernel_names", &device::SimDevice::kernel_names)
      .def("accesses", &accesses,
           "Of the latest pass: (stage, dispatch, slot, read begin, read end, written begin, written end).");
}
#endif

}  // namespace

void bind_device(nb::module_& module) {
  nb::module_ devices = module.def_submodule("device", "Devices that run Metal kernels, for tests and verification.");
  nb::class_<Buffer>(devices, "Buffer")
      .def_prop_ro("size", &Buffer::size)
      .def_prop_ro("label", &Buffer::label)
      .def("contents", &contents, "The bytes of a shared buffer, as a writable view.")
      .def("read", &read, "offset"_a, "size"_a)
      .def(
          "write",
          [](Buffer& buffer, std::uint64_t offset, const nb::bytes& values) {
            buffer.write(offset, {static_cast<const std::byte*>(values.data()), values.size()});
          },
          "offset"_a, "values"_a)
      .def("clear", &Buffer::clear);
  nb::class_<Pipeline>(devices, "Pipeline")
      .def_prop_ro("name", &Pipeline::name)
      .def_prop_ro("max_threads_per_threadgroup", &Pipeline::max_threads_per_threadgroup)
      .def_prop_ro("slots", &slots);
  nb::class_<Dispatch>(devices, "Dispatch")
      .def(
          "__init__",
          [](Dispatch* self, const Pipeline& kernel, const std::vector<BindingTuple>& bindings,
             std::uint32_t bytes_index, const nb::bytes& bytes, std::uint32_t threadgroup_bytes,
             const std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>& threadgroups, std::uint32_t threads) {
            new (self)
                Dispatch(make_dispatch(kernel, bindings, bytes_index, bytes, threadgroup_bytes, threadgroups, threads));
          },
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), "pipeline"_a, "bindings"_a, "bytes_index"_a, "bytes"_a,
          "threadgroup_bytes"_a, "threadgroups"_a, "threads"_a);
  nb::class_<Device>(devices, "Device")
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("allocated_bytes", &Device::allocated_bytes)
      .def(
          "allocate",
          [](Device& device, std::uint64_t size, const std::string& label, bool shared) {
            return device.allocate(size, shared ? device::BufferStorage::shared : device::BufferStorage::private_,
                                   label);
          },
          "size"_a, "label"_a = "", "shared"_a = true)
      .def(
          "wrap",
          [](Device& device, const ReadOnlyBytes& array, const std::string& label) {
            return device.wrap(reinterpret_cast<const std::byte*>(array.data()), array.size(), label, {});
          },
          nb::keep_alive<0, 2>(), "array"_a, "label"_a = "")
      .def("pipeline", &pipeline, nb::rv_policy::reference_internal, "kernel"_a,
           "constants"_a = std::vector<std::pair<std::uint32_t, std::int32_t>>())
      .def("run", &run, "stages"_a,
           "Runs lists of dispatches, one list a stage; returns the seconds it took and the error, empty for none.");
  bind_metal(devices);
  bind_inspecting_device(devices);
#ifdef LILY_HAS_CUDA
  bind_cuda(devices);
#endif
#ifdef LILY_HAS_SIM
  bind_sim(devices);
#endif
}

}  // namespace lily::bind
