// cpu/embed.h -- one row of an embedding matrix, dequantized.
#pragma once

#include "weights/matrix.h"

namespace lily::cpu {

// Fills `out` [columns] with the values of one row of a matrix.
void dequantize_row(const Matrix& matrix, std::int64_t row, float* out);

}  // namespace lily::cpu
