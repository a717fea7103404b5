// cpu/isa/portable_float.cpp -- the float kernels for any processor.
#include "cpu/isa/isa.h"
#include "cpu/kernels/float_table.h"
#include "cpu/kernels/simd_portable.h"

namespace lily::cpu {

void fill_float_portable(KernelTable& table) { fill_float<VectorPortable>(table); }

}  // namespace lily::cpu
