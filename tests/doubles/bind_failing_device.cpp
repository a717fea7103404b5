// doubles/bind_failing_device.cpp -- binds failing_device.h.
#include <nanobind/stl/shared_ptr.h>

#include "doubles.h"
#include "failing_device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::doubles {

void bind_failing_device(nb::module_& module) {
  nb::class_<FailingDevice, device::Device>(module, "FailingDevice", "A device whose passes fail on demand.")
      .def(nb::init<std::shared_ptr<device::Device>>(), "device"_a)
      .def("fail_after", &FailingDevice::fail_after, "passes"_a)
      .def("recover", &FailingDevice::recover);
}

}  // namespace lily::doubles
