// bind/model.cpp -- binds engine/model.h.
#include "engine/model.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <mutex>

#include "bind/bind.h"
#include "cpu/arithmetic.h"
#include "cpu/dispatch.h"
#include "cpu/thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {

void bind_model(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions", "Options of a loaded model; 0 and \"\" mean the default.")
      .def(nb::init<>())
      .def_rw("backend", &EngineOptions::backend)
      .def_rw("threads", &EngineOptions::threads)
      .def_rw("prefill_chunk", &EngineOptions::prefill_chunk)
      .def_rw("max_context", &EngineOptions::max_context)
      .def_rw("weights", &EngineOptions::weights)
      .def_rw("cpu_isa", &EngineOptions::cpu_isa)
      .def_rw("kv_cache_type", &EngineOptions::kv_cache_type)
      .def_rw("gpu", &EngineOptions::gpu)
      .def_rw("copy_progress", &EngineOptions::copy_progress,
              "Called with (bytes copied, bytes in all) while weights are copied to a device; may be None.")
      .def_rw("compile_progress", &EngineOptions::compile_progress,
              "Called with (pipelines made, pipelines in all) while a device compiles them; may be None.");
  nb::class_<Model>(module, "Model", "A mapped checkpoint and the backend that runs it.")
      .def(nb::init<ModelConfig, const CheckpointSource&, EngineOptions>(), "config"_a, "source"_a, "options"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro(
          "scratch_bytes",
          [](Model& self) {
            const std::scoped_lock lock(self.compute_mutex());
            return self.backend().scratch_bytes();
          },
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("options", &Model::options);
  module.def("available_isas", &cpu::available_isas);
  module.def("physical_core_count", &cpu::physical_core_count);
  module.attr("CPU_ARITHMETIC") = cpu::kArithmetic;
  module.def("gpu_arithmetic", [] { return LILY_GPU_ARITHMETIC; });  // of cmake/gpu_arithmetic.cmake
}

}  // namespace lily::bind
