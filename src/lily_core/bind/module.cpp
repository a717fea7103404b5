// bind/module.cpp -- the extension module lily._core.
#include "bind/bind.h"

namespace {

// Threads and callbacks acquire the main interpreter's lock: from another one they would wait for ever.
void require_main_interpreter() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError, "lily._core cannot be used in a subinterpreter; import it in the main one");
    throw nanobind::python_error();
  }
}

}  // namespace

NB_MODULE(_core, module) {
  require_main_interpreter();
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
