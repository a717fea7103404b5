// cpu/isa/portable_matmul.cpp -- matrix kernels for any processor.
#include "cpu/isa/isa.h"
#include "cpu/matmul/portable.h"
#include "cpu/matmul/quantize_row.h"

namespace lily::cpu {

void fill_matmul_portable(KernelTable& table) {
  table.quantize_row = quantize_row;
  table.matmul_scratch_bytes = portable_scratch_bytes;
  table.matmul_affine = portable_affine;
  table.matmul_plain = portable_plain;
}

}  // namespace lily::cpu
