// cpu/isa/neon_matmul.cpp -- matrix kernels for Armv8.2 NEON with dot products.
#include "cpu/isa/isa.h"
#include "cpu/matmul/affine.h"
#include "cpu/matmul/plain.h"
#include "cpu/matmul/quantize_row.h"
#include "cpu/matmul/vectors_neon.h"

namespace lily::cpu {

void fill_matmul_neon(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = affine_scratch_bytes;
  table.matmul_affine = matmul_affine<Neon>;
  table.matmul_plain = matmul_plain<Neon>;
}

}  // namespace lily::cpu
