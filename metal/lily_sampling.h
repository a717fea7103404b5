// lily_sampling.h -- the arithmetic of a draw: base/sampling_arithmetic.h in Metal, the same to the bit.
#pragma once

#include "lily_common.h"

// Order keys: greater logit, greater key. Integers, as some GPUs compare subnormals as zeros. -0 is 0; NaN is on top.
constant uint kKeyForbidden = 0x007fffffu;  // of -inf
constant uint kKeyInfinite = 0xff800000u;   // of +inf; NaN is above

METAL_FUNC uint order_key(uint bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if (bits == 0x80000000u) return 0x80000000u;
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

METAL_FUNC float logit_of_key(uint key) { return as_type<float>((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key); }

// 2^31 * 2^(-fraction / 2^32).
METAL_FUNC uint power_of_half(uint fraction) {
  uint value = 2739202u - mulhi(fraction, 234782u);
  value = 20572593u - mulhi(fraction, value);
  value = 119165869u - mulhi(fraction, value);
  value = 515877823u - mulhi(fraction, value);
  value = 1488521945u - mulhi(fraction, value);
  return 0x80000000u - mulhi(fraction, value);
}

// How the masses of one draw follow from keys.
struct MassScale {
  uint maximum_key;
  float maximum;
  float scale;

  METAL_FUNC ulong mass(uint key) const {
    if (key <= kKeyForbidden) return 0;
    const float difference = min(maximum - logit_of_key(key), 3.402823466e38f);
    const float exponent = (difference < 7.888609052e-31f ? 0.0f : difference) * scale;
    if (!(exponent <= 671088640.0f)) return 0;
    const uint bits = uint(exponent);
    return (ulong(power_of_half(bits << 8)) << 9) >> (bits >> 24);
  }
};

// floor(mass * fraction / 2^31), at least 1.
METAL_FUNC ulong share_of(ulong mass, uint fraction) {
  const ulong share = (mass >> 31) * fraction + (((mass & 0x7fffffffu) * fraction) >> 31);
  return max(share, ulong(1));
}

// floor(mass * random / 2^64).
METAL_FUNC ulong scaled_draw(ulong mass, ulong random) {
  const ulong low = 0xffffffffu;
  const ulong middle = (mass >> 32) * (random & low) + (((mass & low) * (random & low)) >> 32);
  const ulong other = (mass & low) * (random >> 32) + (middle & low);
  return (mass >> 32) * (random >> 32) + (middle >> 32) + (other >> 32);
}

METAL_FUNC ulong mix_bits(ulong value) {
  value += 0x9e3779b97f4a7c15ul;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ul;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebul;
  return value ^ (value >> 31);
}

// 64 random bits for a position.
METAL_FUNC ulong random_at(ulong seed, ulong position) { return mix_bits(mix_bits(seed) ^ position); }
