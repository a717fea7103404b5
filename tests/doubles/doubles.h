// doubles/doubles.h -- the parts of the extension module of devices that stand in for others in tests.
#pragma once

#include <nanobind/nanobind.h>

namespace lily::doubles {

void bind_callback_device(nanobind::module_& module);
void bind_failing_device(nanobind::module_& module);
void bind_rehearsed_device(nanobind::module_& module);

}  // namespace lily::doubles
