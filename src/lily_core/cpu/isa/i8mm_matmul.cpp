// cpu/isa/i8mm_matmul.cpp -- matrix kernels for NEON with 8-bit matrix products (FEAT_I8MM).
#include "cpu/isa/isa.h"
#include "cpu/matmul/i8mm.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"

namespace lily::cpu {

void fill_matmul_i8mm(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = i8mm_scratch_bytes;
  table.matmul_affine = matmul_affine_i8mm;
  table.matmul_plain = matmul_plain<Neon>;
}

}  // namespace lily::cpu
