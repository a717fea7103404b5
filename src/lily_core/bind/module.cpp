// bind/module.cpp -- the extension module lily._core.
#include "bind/bind.h"

NB_MODULE(_core, module) {
  module.doc() = "Native core of Lily; use the classes of the package lily instead.";
  lily::bind::bind_errors(module);
  lily::bind::bind_config(module);
  lily::bind::bind_sources(module);
  lily::bind::bind_sampler(module);
  lily::bind::bind_gpu_options(module);
  lily::bind::bind_model(module);
  lily::bind::bind_session(module);
  lily::bind::bind_snapshot(module);
  lily::bind::bind_kernels(module);
  lily::bind::bind_device(module);
  lily::bind::bind_gpu(module);
}
