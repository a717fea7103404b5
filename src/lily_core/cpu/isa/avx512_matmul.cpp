// cpu/isa/avx512_matmul.cpp -- matrix kernels for AVX-512 with VNNI.
#include "cpu/isa/isa.h"
#include "cpu/matmul/affine.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"
#include "cpu/matmul/vectors_avx512.h"

namespace lily::cpu {

void fill_matmul_avx512(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = affine_scratch_bytes;
  table.matmul_affine = matmul_affine<Avx512>;
  table.matmul_plain = matmul_plain<Avx512>;
}

}  // namespace lily::cpu
