// cpu/isa/amx_matmul.cpp -- matrix kernels for AVX-512 with VNNI and AMX.
#include "cpu/isa/isa.h"
#include "cpu/matmul/amx.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"

namespace lily::cpu {

void fill_matmul_amx(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = amx_scratch_bytes;
  table.matmul_affine = matmul_affine_amx;
  table.matmul_plain = matmul_plain<Avx512>;
}

}  // namespace lily::cpu
