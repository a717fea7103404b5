// sim/runtime/behaviour_hooks.cpp -- the functions that code compiled with -fsanitize=alignment,bounds,... calls on
// undefined behaviour. They get the source line from the compiler.
#include <cstdint>

#include "runtime/lane.h"

namespace {

struct Location {
  const char* file;
  std::uint32_t line, column;
};

[[noreturn]] void refuse(const void* data, const char* what) {
  const auto& location = *static_cast<const Location*>(data);  // every description begins with one
  lily_sim::fail("%s at %s:%u", what, lily_sim::base_name(location.file), location.line);
}

}  // namespace

extern "C" {

void __ubsan_handle_type_mismatch_v1_abort(void* data, std::uintptr_t address) {
  const auto& location = *static_cast<const Location*>(data);
  lily_sim::fail("misaligned access at %s:%u: the address is a multiple of %lu only",
                 lily_sim::base_name(location.file), location.line,
                 static_cast<unsigned long>(address & (~address + 1)));
}
void __ubsan_handle_out_of_bounds_abort(void* data, void*) { refuse(data, "index outside the array"); }
void __ubsan_handle_shift_out_of_bounds_abort(void* data, void*, void*) { refuse(data, "shift by too many bits"); }
void __ubsan_handle_divrem_overflow_abort(void* data, void*, void*) { refuse(data, "division by zero or overflow"); }
void __ubsan_handle_builtin_unreachable(void* data) { refuse(data, "unreachable code reached"); }

}  // extern "C"
