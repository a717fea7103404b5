// bind/bind.h -- the parts of the extension module; one file binds each engine header.
#pragma once

#include <nanobind/nanobind.h>

namespace lily::bind {

void bind_errors(nanobind::module_& module);
void bind_config(nanobind::module_& module);
void bind_sources(nanobind::module_& module);
void bind_sampler(nanobind::module_& module);
void bind_gpu_options(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_session(nanobind::module_& module);
void bind_snapshot(nanobind::module_& module);
void bind_kernels(nanobind::module_& module);
void bind_gpu(nanobind::module_& module);  // after bind_device
void bind_device(nanobind::module_& module);
void bind_metal(nanobind::module_& devices);              // from bind_device
void bind_inspecting_device(nanobind::module_& devices);  // from bind_device
void bind_cuda(nanobind::module_& devices);               // from bind_device

}  // namespace lily::bind
