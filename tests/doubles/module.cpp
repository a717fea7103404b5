// doubles/module.cpp -- lily._test_doubles: devices for tests, beside lily._core, which knows their base class.
#include "doubles.h"

NB_MODULE(_test_doubles, module) {
  nanobind::module_::import_("lily._core");
  lily::doubles::bind_callback_device(module);
  lily::doubles::bind_failing_device(module);
  lily::doubles::bind_rehearsed_device(module);
}
