// cpu/isa/avx512_matmul.cpp -- matrix kernels for AVX-512 with VNNI.
#include "cpu/isa/isa.h"
#include "cpu/matmul/one_row_avx512.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"

namespace lily::cpu {

void fill_matmul_avx512(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = affine_scratch_bytes;
  table.matmul_affine = matmul_affine_avx512;
  table.matmul_plain = matmul_plain<Avx512>;
}

}  // namespace lily::cpu
