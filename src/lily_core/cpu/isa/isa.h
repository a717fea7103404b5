// cpu/isa/isa.h -- the translation units of each instruction set: one for matmul and one for the rest.
//
// Those units are compiled with their own processor flags, so everything in them is internal to them: an inline
// function that the linker merged with another unit's copy could carry instructions that the processor lacks.
#pragma once

#include "cpu/kernels.h"

namespace lily::cpu {

// Set the quantize_row and matmul members of the table.
void fill_matmul_portable(KernelTable& table);
void fill_matmul_avx2(KernelTable& table);
void fill_matmul_avx512(KernelTable& table);
void fill_matmul_amx(KernelTable& table);  // with the float kernels of avx512
void fill_matmul_neon(KernelTable& table);
void fill_matmul_i8mm(KernelTable& table);  // with the float kernels of neon

// Set every other member.
void fill_float_portable(KernelTable& table);
void fill_float_avx2(KernelTable& table);
void fill_float_avx512(KernelTable& table);
void fill_float_neon(KernelTable& table);

}  // namespace lily::cpu
