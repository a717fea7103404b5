// bind/gpu.cpp -- binds base/gpu_options.h, gpu/step_report.h and, for tests, the planner and models on a given device.
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "base/error.h"
#include "bind/bind.h"
#include "device/open.h"
#include "engine/model.h"
#include "gpu/gpu_backend.h"
#include "gpu/null_device.h"
#include "gpu/step_report.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using gpu::Options;
using gpu::PassReport;

// Memory (a buffer's number, or -1 - n for piece n of scratch memory), offset, size, access ("r", "w" or "rw").
using OperandTuple = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, std::string>;
// The stage of every operation, the offset of every piece of scratch memory, the bytes of scratch memory.
using PlanTuple = std::tuple<std::vector<std::uint32_t>, std::vector<std::uint64_t>, std::uint64_t>;

gpu::Operand make_operand(const OperandTuple& tuple, std::uint32_t index, std::span<const gpu::View> scratch,
                          std::map<std::int64_t, std::shared_ptr<device::Buffer>>& buffers, gpu::NullDevice& device) {
  const auto& [memory, offset, size, access] = tuple;
  gpu::View view;
  if (memory < 0) {
    view = scratch[static_cast<std::size_t>(-1 - memory)].part(offset, size);
  } else {
    auto& buffer = buffers[memory];
    if (buffer == nullptr) buffer = device.allocate(1 << 20, device::BufferStorage::private_, "test");
    view = gpu::whole(*buffer).part(offset, size);
  }
  return access == "r" ? gpu::reads(index, view) : access == "w" ? gpu::writes(index, view) : gpu::updates(index, view);
}

// An operation without operands is work of the host.
PlanTuple plan_operations(const std::vector<std::vector<OperandTuple>>& operations,
                          const std::vector<std::uint64_t>& scratch_sizes, bool concurrent) {
  gpu::NullDevice device;
  gpu::Pass pass;
  std::vector<gpu::View> scratch;
  scratch.reserve(scratch_sizes.size());
  for (const std::uint64_t size : scratch_sizes) scratch.push_back(pass.scratch(size));
  std::map<std::int64_t, std::shared_ptr<device::Buffer>> buffers;
  const device::Pipeline& pipeline = device.pipeline("test", {});
  for (const auto& operands : operations) {
    if (operands.empty()) {
      pass.add_host_work([] {});
      continue;
    }
    gpu::Operation operation;
    operation.pipeline = &pipeline;
    for (const OperandTuple& operand : operands) {
      operation.operands.push_back(
          make_operand(operand, static_cast<std::uint32_t>(operation.operands.size()), scratch, buffers, device));
    }
    pass.add(std::move(operation));
  }
  const gpu::Schedule order = gpu::schedule(pass, concurrent);
  const gpu::ScratchLayout layout = gpu::layout_scratch(pass, order.stage_of);
  return {order.stage_of, layout.offsets, layout.bytes};
}

gpu::DeclaredFormats formats_of(const std::map<std::string, std::pair<MatrixFormat, std::int32_t>>& formats) {
  gpu::DeclaredFormats all;
  for (const auto& [name, format] : formats) all[name] = {format.first, format.second};
  return all;
}

gpu::GpuBackend& gpu_backend(Model& model) {
  auto* backend = dynamic_cast<gpu::GpuBackend*>(&model.backend());
  if (backend == nullptr) throw Error(ErrorKind::invalid_argument, "this model does not run on a GPU device");
  return *backend;
}

void bind_options(nb::module_& module) {
  nb::class_<Options>(module, "GpuOptions", "A switch for every mechanism of the GPU engine; see lily.GpuOptions.")
      .def(nb::init<>())
      .def_rw("dequantize_in_gemm", &Options::dequantize_in_gemm)
      .def_rw("route_on_device", &Options::route_on_device)
      .def_rw("tile_rows", &Options::tile_rows)
      .def_rw("register_scan", &Options::register_scan)
      .def_rw("token_handoff", &Options::token_handoff)
      .def_rw("concurrent_stages", &Options::concurrent_stages)
      .def_rw("fuse_expert_inputs", &Options::fuse_expert_inputs)
      .def_rw("fuse_expert_outputs", &Options::fuse_expert_outputs)
      .def_rw("fuse_attention_inputs", &Options::fuse_attention_inputs)
      .def_rw("fuse_recurrent_norm", &Options::fuse_recurrent_norm)
      .def_rw("coalesced_cache", &Options::coalesced_cache)
      .def_rw("pack_query_heads", &Options::pack_query_heads)
      .def_rw("blocked_attention", &Options::blocked_attention)
      .def_rw("blocked_attention_threshold", &Options::blocked_attention_threshold)
      .def_rw("pass_seconds", &Options::pass_seconds)
      .def("validate", &Options::validate);
}

void bind_reports(nb::module_& module) {
  nb::class_<PassReport>(module, "PassReport", "Counts of a planned pass; bytes by kind of memory.")
      .def_ro("kernels", &PassReport::kernels)
      .def_ro("stages", &PassReport::stages)
      .def_ro("barriers", &PassReport::barriers)
      .def_ro("waits", &PassReport::waits)
      .def_ro("bytes_read", &PassReport::bytes_read)
      .def_ro("bytes_written", &PassReport::bytes_written)
      .def_ro("scratch_bytes", &PassReport::scratch_bytes)
      .def_ro("scratch_bytes_unshared", &PassReport::scratch_bytes_unshared);
  nb::class_<gpu::StepReport>(module, "StepReport", "A decode step or a prompt chunk, planned without weights.")
      .def_prop_ro("total", [](const gpu::StepReport& self) { return self.pass; })
      .def_ro("kernels", &gpu::StepReport::kernels)
      .def_ro("steps_in_flight", &gpu::StepReport::steps_in_flight);
  using FormatMap = std::map<std::string, std::pair<MatrixFormat, std::int32_t>>;
  module.def(
      "report_decode",
      [](const ModelConfig& config, const FormatMap& formats, const Options& options, std::int64_t context) {
        return gpu::report_decode(config, formats_of(formats), options, context);
      },
      "config"_a, "formats"_a, "options"_a, "context"_a);
  module.def(
      "report_prefill",
      [](const ModelConfig& config, const FormatMap& formats, const Options& options, std::int64_t context,
         std::int64_t rows) { return gpu::report_prefill(config, formats_of(formats), options, context, rows); },
      "config"_a, "formats"_a, "options"_a, "context"_a, "rows"_a);
  module.attr("MEMORY_KINDS") = nb::make_tuple("weights", "cache", "recurrent", "other");
}

void bind_models(nb::module_& module) {
  nb::class_<gpu::BackendCounters>(module, "Counters", "Counts of all passes of a model so far.")
      .def_ro("submissions", &gpu::BackendCounters::submissions)
      .def_ro("waits", &gpu::BackendCounters::waits)
      .def_ro("prefill_seconds", &gpu::BackendCounters::prefill_seconds)
      .def_ro("decode_seconds", &gpu::BackendCounters::decode_seconds)
      .def_ro("prefill", &gpu::BackendCounters::prefill)
      .def_ro("decode", &gpu::BackendCounters::decode);
  module.def(
      "set_options",
      [](Model& model, const Options& options) {
        const std::scoped_lock lock(model.compute_mutex());
        gpu_backend(model).set_options(options);
      },
      "model"_a, "options"_a, "Other switches from the next pass on: for measuring. No session may be in a call.");
  module.def("counters", [](Model& model) { return gpu_backend(model).counters(); }, "model"_a);
  module.def(
      "copied_weights",
      [](Model& model) {
        const gpu::CopiedWeights& copied = gpu_backend(model).copied_weights();
        return std::pair(copied.tensors, copied.bytes);
      },
      "model"_a, "(tensors, bytes) that were not aligned in the files.");
  module.def(
      "model_on",
      [](std::shared_ptr<device::Device> device, const ModelConfig& config, const CheckpointSource& source,
         const EngineOptions& options) { return std::make_shared<Model>(config, source, options, std::move(device)); },
      "device"_a, "config"_a, "source"_a, "options"_a, "A model on a device that the caller has opened.");
}

}  // namespace

void bind_gpu(nb::module_& module) {
  nb::module_ part = module.def_submodule("gpu", "The GPU engine: options, reports, and entries for tests.");
  bind_reports(part);
  bind_models(part);
  nb::class_<gpu::NullDevice, device::Device>(part, "NullDevice", "A device that computes nothing.").def(nb::init<>());
  part.def("plan_operations", &plan_operations, "operations"_a, "scratch_sizes"_a, "concurrent"_a);
  part.def("available_devices", &device::available_devices);
}

void bind_gpu_options(nb::module_& module) { bind_options(module); }

}  // namespace lily::bind
