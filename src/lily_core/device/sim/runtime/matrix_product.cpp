// sim/runtime/matrix_product.cpp -- fused multiply-adds in the order of the inner dimension, so that both products
// give the same bits however the work is cut.
#include "runtime/matrix_product.h"

namespace lily_sim {

void multiply_8x8(const float* __restrict a, const float* __restrict b, float* __restrict c) {
  for (int row = 0; row < 8; ++row) {
    float sums[8];
    for (int column = 0; column < 8; ++column) sums[column] = c[row * 8 + column];
    for (int inner = 0; inner < 8; ++inner) {
      for (int column = 0; column < 8; ++column) {
        sums[column] = __builtin_fmaf(a[row * 8 + inner], b[inner * 8 + column], sums[column]);
      }
    }
    for (int column = 0; column < 8; ++column) c[row * 8 + column] = sums[column];
  }
}

void multiply_tile(const float* __restrict a, const float* __restrict b, float* __restrict c, int rows, int columns,
                   int depth) {
  for (int row = 0; row < rows; ++row) {
    for (int block = 0; block < columns; block += 8) {
      float sums[8];
      for (int column = 0; column < 8; ++column) sums[column] = c[row * columns + block + column];
      for (int inner = 0; inner < depth; ++inner) {
        const float* line = b + inner * columns + block;
        for (int column = 0; column < 8; ++column) {
          sums[column] = __builtin_fmaf(a[row * depth + inner], line[column], sums[column]);
        }
      }
      for (int column = 0; column < 8; ++column) c[row * columns + block + column] = sums[column];
    }
  }
}

}  // namespace lily_sim
