// weights/matrix.h -- a weight matrix used in place in the mapped checkpoint, quantized or plain.
//
// Nothing here is aligned: safetensors writers do not pad their header, so every pointer may be odd.
// Read through memcpy or unaligned vector loads only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lily {

enum class ElementType : std::uint8_t { bfloat16, float16, float32 };

[[nodiscard]] constexpr std::int64_t element_bytes(ElementType type) { return type == ElementType::float32 ? 4 : 2; }

enum class MatrixFormat : std::uint8_t {
  affine4,  // 8 codes a 32-bit word, lowest nibble first; value = scale * code + bias per group
  affine8,  // 4 codes a 32-bit word, lowest byte first
  plain,    // element_type values, row-major
};

// y = W x with W [rows, columns]. A view: the mapping outlives it.
struct Matrix {
  MatrixFormat format = MatrixFormat::plain;
  ElementType element_type = ElementType::float32;  // plain: of the values; affine: of scales and biases
  std::int32_t group_size = 0;                      // affine: columns that share a scale and a bias (32, 64, 128)
  std::int64_t rows = 0;
  std::int64_t columns = 0;           // affine: a multiple of group_size
  const std::byte* weight = nullptr;  // [rows, columns * bits / 8] bytes
  const std::byte* scales = nullptr;  // [rows, columns / group_size] element_type; affine only
  const std::byte* biases = nullptr;  // [rows, columns / group_size] element_type; affine only

  [[nodiscard]] bool is_affine() const { return format != MatrixFormat::plain; }
  [[nodiscard]] std::int64_t bits() const {
    return format == MatrixFormat::affine4 ? 4 : format == MatrixFormat::affine8 ? 8 : 8 * element_bytes(element_type);
  }
  [[nodiscard]] std::int64_t row_bytes() const { return columns * bits() / 8; }
  [[nodiscard]] std::int64_t groups() const { return group_size == 0 ? 0 : columns / group_size; }
  [[nodiscard]] std::int64_t scale_row_bytes() const { return groups() * element_bytes(element_type); }
};

[[nodiscard]] inline float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Round to nearest even; NaN stays NaN.
[[nodiscard]] inline std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

[[nodiscard]] inline float float16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // zero and subnormals
  return sign != 0 ? -magnitude : magnitude;
}

// Round to nearest even; saturates at +-65504, infinities too; NaN stays NaN.
[[nodiscard]] inline std::uint16_t float_to_float16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000U) {
    half = 0x7e00U | ((magnitude >> 13) & 0x1ffU);
  } else if (magnitude >= 0x477fe000U) {  // 65504
    half = 0x7bffU;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal value
    half = (magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13;
  } else {  // adding 0.5 leaves a multiple of 2^-24 in the low bits
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
  }
  return static_cast<std::uint16_t>(sign | half);
}

// The index-th value of an array of `type` at a possibly unaligned address.
[[nodiscard]] inline float load_element(const std::byte* base, ElementType type, std::int64_t index) {
  if (type == ElementType::float32) {
    float value;
    std::memcpy(&value, base + 4 * index, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, base + 2 * index, 2);
  return type == ElementType::bfloat16 ? bfloat16_to_float(bits) : float16_to_float(bits);
}

}  // namespace lily
