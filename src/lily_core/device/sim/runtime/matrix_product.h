// sim/runtime/matrix_product.h -- the products behind simdgroup_matrix and the tile. No standard headers (see abi.h).
#pragma once

namespace lily_sim {

// c[8 x 8] += a[8 x 8] b[8 x 8], all row-major.
void multiply_8x8(const float* a, const float* b, float* c);

// c[rows x columns] += a[rows x depth] b[depth x columns]; rows of b and c have `columns` floats, a multiple of 8.
void multiply_tile(const float* a, const float* b, float* c, int rows, int columns, int depth);

}  // namespace lily_sim
