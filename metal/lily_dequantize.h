// lily_dequantize.h -- 16 bytes of a matrix row as bf16: 32 codes of 4 bits, 16 of 8 bits, or 8 values as they are.
#pragma once

#include "lily_common.h"

METAL_FUNC uint4 pack_bfloats(float4 low, float4 high) {
  return uint4(as_type<uint2>(bfloat4(low)), as_type<uint2>(bfloat4(high)));
}

// The four codes in the low 16 bits of `word`, each left at its place: scales has scale times 1, 1/16, 1/256, 1/4096.
METAL_FUNC float4 dequantize_four(uint word, float4 scales, float bias) {
  const uint4 codes = uint4(word & 0xfu, word & 0xf0u, word & 0xf00u, word & 0xf000u);
  return float4(codes) * scales + bias;
}

METAL_FUNC float4 dequantize_bytes(uint word, float scale, float bias) {
  const uint4 codes = uint4(word & 0xffu, (word >> 8) & 0xffu, (word >> 16) & 0xffu, word >> 24);
  return float4(codes) * scale + bias;
}

// Columns 8 part to 8 part + 7 of the 128 / BITS in `codes`, as eight bf16 values: scale * code + bias, rounded once
// (the product of a code and a bf16 scale is exact in float).
template <int BITS>
METAL_FUNC uint4 dequantize_eight(uint4 codes, int part, float scale, float bias) {
  if (BITS == 16) return codes;
  if (BITS == 8) {
    return pack_bfloats(dequantize_bytes(codes[2 * part], scale, bias),
                        dequantize_bytes(codes[2 * part + 1], scale, bias));
  }
  const float4 scales = float4(1.0f, 1.0f / 16, 1.0f / 256, 1.0f / 4096) * scale;
  return pack_bfloats(dequantize_four(codes[part], scales, bias), dequantize_four(codes[part] >> 16, scales, bias));
}
