// bind/module.cpp -- the extension module lily._core.
#include "bind/bind.h"

// nanobind's own entry replaces state that the importing interpreter shares with all others, so only the main
// interpreter may reach it.
#define PyInit__core PyInit__core_of_main_interpreter

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

#undef PyInit__core

// Threads and callbacks acquire the main interpreter's lock: from another one they would wait forever.
extern "C" NB_EXPORT PyObject* PyInit__core() {  // NOLINT(bugprone-reserved-identifier): Python's name
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return PyInit__core_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError, "lily._core cannot be used in a subinterpreter; import it in the main one");
  return nullptr;
}
