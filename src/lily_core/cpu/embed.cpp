// cpu/embed.cpp -- dequantizes one row of an embedding matrix.
#include "cpu/embed.h"

namespace lily::cpu {

void dequantize_row(const Matrix& matrix, std::int64_t row, float* out) {
  const std::byte* weight = matrix.weight + row * matrix.row_bytes();
  if (!matrix.is_affine()) {
    for (std::int64_t i = 0; i < matrix.columns; ++i) out[i] = load_element(weight, matrix.element_type, i);
    return;
  }
  const std::byte* scales = matrix.scales + row * matrix.scale_row_bytes();
  const std::byte* biases = matrix.biases + row * matrix.scale_row_bytes();
  const bool nibbles = matrix.format == MatrixFormat::affine4;
  for (std::int64_t group = 0; group < matrix.groups(); ++group) {
    const float scale = load_element(scales, matrix.element_type, group);
    const float bias = load_element(biases, matrix.element_type, group);
    for (std::int64_t i = group * matrix.group_size; i < (group + 1) * matrix.group_size; ++i) {
      const auto byte = static_cast<unsigned>(weight[nibbles ? i / 2 : i]);
      const unsigned code = nibbles ? (byte >> (4 * (i % 2))) & 0xfU : byte;
      out[i] = scale * static_cast<float>(code) + bias;
    }
  }
}

}  // namespace lily::cpu
