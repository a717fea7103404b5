// device/msl/float16.h -- bfloat and half: storage types that widen to float implicitly and narrow explicitly.
//
// bfloat has no arithmetic: kernels compute in float. half has + - * /, each rounded.
// A device defines lily_bfloat_bits, lily_half_bits and lily_half_value before it includes this header.
#pragma once

#include "base.h"

namespace metal {

struct half;

struct bfloat {
  ushort bits;
  bfloat() = default;
  LILY_FN explicit bfloat(float value) : bits(lily_bfloat_bits(value)) {}
  LILY_FN explicit bfloat(int value) : bits(lily_bfloat_bits(static_cast<float>(value))) {}
  LILY_FN explicit bfloat(uint value) : bits(lily_bfloat_bits(static_cast<float>(value))) {}
  LILY_FN explicit bfloat(half value);
  LILY_FN operator float() const { return lily_bit_cast<float>(static_cast<uint>(bits) << 16); }
};

struct half {
  ushort bits;
  half() = default;
  LILY_FN explicit half(float value) : bits(lily_half_bits(value)) {}
  LILY_FN explicit half(int value) : bits(lily_half_bits(static_cast<float>(value))) {}
  LILY_FN explicit half(uint value) : bits(lily_half_bits(static_cast<float>(value))) {}
  LILY_FN explicit half(bfloat value) : bits(lily_half_bits(static_cast<float>(value))) {}
  LILY_FN operator float() const { return lily_half_value(bits); }
};

LILY_FN bfloat::bfloat(half value) : bits(lily_bfloat_bits(static_cast<float>(value))) {}

#define LILY_ARITHMETIC16(op)                                        \
  bfloat operator op(bfloat, bfloat) = delete;                       \
  template <class I, class = enable_if_t<lily_is_integer<I>::value>> \
  bfloat operator op(bfloat, I) = delete;                            \
  template <class I, class = enable_if_t<lily_is_integer<I>::value>> \
  bfloat operator op(I, bfloat) = delete;                            \
  template <class I, class = enable_if_t<lily_is_integer<I>::value>> \
  half operator op(half, I) = delete;                                \
  template <class I, class = enable_if_t<lily_is_integer<I>::value>> \
  half operator op(I, half) = delete;                                \
  LILY_FN half operator op(half a, half b) { return half(static_cast<float>(a) op static_cast<float>(b)); }
LILY_ARITHMETIC16(+)
LILY_ARITHMETIC16(-)
LILY_ARITHMETIC16(*)
LILY_ARITHMETIC16(/)
#undef LILY_ARITHMETIC16

}  // namespace metal
