// doubles/bind_rehearsed_device.cpp -- binds rehearsed_device.h.

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "doubles.h"
#include "rehearsed_device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::doubles {

using device::metal::RehearsedDevice;

void bind_rehearsed_device(nb::module_& module) {
  nb::class_<RehearsedDevice, device::Device>(
      module, "RehearsedDevice", "Another device, behind the Metal device's own submitting, waiting and failing.")
      .def(
          "__init__",
          [](RehearsedDevice* self, std::shared_ptr<device::Device> inner, std::uint64_t working_set,
             std::uint64_t buffer, std::uint64_t machine) {
            new (self)
                RehearsedDevice(std::move(inner), {.working_set = working_set, .buffer = buffer, .machine = machine});
          },
          "device"_a, nb::kw_only(), "working_set"_a = 0, "buffer"_a = 0, "machine"_a = 0)
      .def(
          "fail_after",
          [](RehearsedDevice& self, std::uint64_t count, std::int64_t code, const std::string& description,
             bool lasting) {
            self.fail_after(count, {.of_command_buffer = true, .code = code, .description = description, .part = ""},
                            lasting);
          },
          "command_buffers"_a, "code"_a, "description"_a = "injected", nb::kw_only(), "lasting"_a = false,
          "The command buffer after so many ends with Metal's error of this number; `lasting`: and all after it.")
      .def("recover", &RehearsedDevice::recover)
      .def_prop_ro("compiled_ahead", &RehearsedDevice::compiled_ahead)
      .def_prop_ro("compiled_late", &RehearsedDevice::compiled_late,
                   "Pipelines that were first asked for when they were needed.");
}

}  // namespace lily::doubles
