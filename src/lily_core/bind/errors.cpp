// bind/errors.cpp -- maps the core's error kinds to the exception classes of lily.errors.
#include <exception>
#include <new>
#include <string_view>

#include "base/error.h"
#include "bind/bind.h"

namespace nb = nanobind;

namespace lily::bind {
namespace {

const char* class_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::checkpoint:
      return "CheckpointError";
    case ErrorKind::config:
      return "ConfigError";
    case ErrorKind::invalid_argument:
      return "InvalidArgumentError";
    case ErrorKind::context_overflow:
      return "ContextOverflowError";
    case ErrorKind::memory_limit:
      return "MemoryLimitError";
    case ErrorKind::closed:
      return "ClosedError";
    case ErrorKind::busy:
      return "BusyError";
    case ErrorKind::cancelled:
      return "CancelledError";
    case ErrorKind::backend:
      return "BackendError";
    case ErrorKind::non_finite:
      return "NonFiniteError";
  }
  return "LilyError";
}

}  // namespace

void bind_errors(nb::module_& /*module*/) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void* /*payload*/) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const nb::object type = nb::module_::import_("lily.errors").attr(class_name(error.kind()));
      // A file's name need not be valid text.
      const std::string_view what = error.what();
      const nb::object text =
          nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "backslashreplace"));
      PyErr_SetObject(type.ptr(), text.ptr());
    } catch (const std::bad_alloc&) {
      const nb::object type = nb::module_::import_("lily.errors").attr("MemoryLimitError");
      PyErr_SetString(type.ptr(),
                      "the system has no memory left for this; close other sessions or lower prefill_chunk");
    }
  });
}

}  // namespace lily::bind
