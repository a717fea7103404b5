// cpu/isa/avx2_float.cpp -- the float kernels for AVX2, FMA and F16C.
#include "cpu/isa/isa.h"
#include "cpu/kernels/codes_avx2.h"
#include "cpu/kernels/float_table.h"
#include "cpu/kernels/simd_avx2.h"

namespace lily::cpu {

void fill_float_avx2(KernelTable& table) { fill_float<VectorAvx2>(table); }

}  // namespace lily::cpu
