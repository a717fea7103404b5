// cpu/amx_permission.h -- whether this process may use AMX.
#pragma once

namespace lily::cpu {

// Whether the processor has AMX with int8 and the system lets this process use it. Linux grants it on request; the
// grant holds for all threads of the process and its children, and cannot be taken back.
[[nodiscard]] bool request_amx();

}  // namespace lily::cpu
