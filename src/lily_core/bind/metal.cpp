// bind/metal.cpp -- binds device/metal.h, and opening a device by name.
#include "device/metal.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "device/open.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {

void bind_metal(nb::module_& devices) {
  using device::MetalFacts;
  nb::class_<MetalFacts>(devices, "MetalFacts", "What a machine with Metal has.")
      .def_ro("device", &MetalFacts::device)
      .def_ro("architecture", &MetalFacts::architecture)
      .def_ro("family", &MetalFacts::family)
      .def_ro("system", &MetalFacts::system)
      .def_ro("language", &MetalFacts::language)
      .def_ro("problem", &MetalFacts::problem)
      .def_ro("working_set_bytes", &MetalFacts::working_set_bytes)
      .def_ro("buffer_bytes", &MetalFacts::buffer_bytes)
      .def_ro("threadgroup_bytes", &MetalFacts::threadgroup_bytes)
      .def_ro("page_bytes", &MetalFacts::page_bytes)
      .def_ro("unified_memory", &MetalFacts::unified_memory)
      .def_ro("residency_sets", &MetalFacts::residency_sets)
      .def_ro("tensor_gemm", &MetalFacts::tensor_gemm)
      .def_ro("tensor_reason", &MetalFacts::tensor_reason)
      .def_ro("kernels", &MetalFacts::kernels)
      .def_ro("rejected", &MetalFacts::rejected);
  devices.def("metal_facts", &device::metal_facts, nb::call_guard<nb::gil_scoped_release>(),
              "What this machine has, or None in a build without Metal.");
  devices.def("open", &device::open, "name"_a, nb::call_guard<nb::gil_scoped_release>(),
              "The device of that name, for tests and verification; BackendError lists the available ones.");
}

}  // namespace lily::bind
