// cpu/isa/avx2_matmul.cpp -- matrix kernels for AVX2 with FMA and F16C.
#include "cpu/isa/isa.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"
#include "cpu/matmul/wide_avx2.h"

namespace lily::cpu {

void fill_matmul_avx2(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = wide_scratch_bytes;
  table.matmul_affine = matmul_affine_avx2;
  table.matmul_plain = matmul_plain<Avx2>;
}

}  // namespace lily::cpu
