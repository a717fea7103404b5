// cpu/isa/neon_float.cpp -- the float kernels for Armv8.2 NEON.
#include "cpu/isa/isa.h"
#include "cpu/kernels/float_table.h"
#include "cpu/kernels/simd_neon.h"

namespace lily::cpu {

void fill_float_neon(KernelTable& table) { fill_float<VectorNeon>(table); }

}  // namespace lily::cpu
