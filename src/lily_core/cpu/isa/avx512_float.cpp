// cpu/isa/avx512_float.cpp -- the float kernels for AVX-512 F, BW, VL, DQ and VNNI.
#include "cpu/isa/isa.h"
#include "cpu/kernels/codes_avx512.h"
#include "cpu/kernels/float_table.h"
#include "cpu/kernels/simd_avx512.h"

namespace lily::cpu {

void fill_float_avx512(KernelTable& table) { fill_float<VectorAvx512>(table); }

}  // namespace lily::cpu
