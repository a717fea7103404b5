// device/msl/math.h -- Metal's mathematical functions on float, on vectors of float, and on integers where Metal has
// them. bfloat and half have none: kernels widen first.
#pragma once

#include "vector.h"

namespace metal {

#define LILY_MATH1(name, expression)                   \
  LILY_FN float name(float x) { return expression; }   \
  float name(bfloat) = delete;                         \
  float name(half) = delete;                           \
  template <int N>                                     \
  LILY_FN vec<float, N> name(vec<float, N> v) {        \
    vec<float, N> r;                                   \
    for (int i = 0; i < N; i++) r.e[i] = name(v.e[i]); \
    return r;                                          \
  }
LILY_MATH1(exp, LILY_BUILTIN(expf)(x))
LILY_MATH1(exp2, LILY_BUILTIN(exp2f)(x))
LILY_MATH1(exp10, LILY_BUILTIN(exp10f)(x))
LILY_MATH1(log, LILY_BUILTIN(logf)(x))
LILY_MATH1(log2, LILY_BUILTIN(log2f)(x))
LILY_MATH1(log10, LILY_BUILTIN(log10f)(x))
LILY_MATH1(sqrt, LILY_BUILTIN(sqrtf)(x))
LILY_MATH1(rsqrt, LILY_RSQRT(x))
LILY_MATH1(sin, LILY_BUILTIN(sinf)(x))
LILY_MATH1(cos, LILY_BUILTIN(cosf)(x))
LILY_MATH1(tan, LILY_BUILTIN(tanf)(x))
LILY_MATH1(sinh, LILY_BUILTIN(sinhf)(x))
LILY_MATH1(cosh, LILY_BUILTIN(coshf)(x))
LILY_MATH1(tanh, LILY_BUILTIN(tanhf)(x))
LILY_MATH1(floor, LILY_BUILTIN(floorf)(x))
LILY_MATH1(ceil, LILY_BUILTIN(ceilf)(x))
LILY_MATH1(rint, LILY_BUILTIN(rintf)(x))
LILY_MATH1(round, LILY_BUILTIN(roundf)(x))
LILY_MATH1(trunc, LILY_BUILTIN(truncf)(x))
LILY_MATH1(fabs, LILY_BUILTIN(fabsf)(x))
LILY_MATH1(fract, (x - LILY_BUILTIN(floorf)(x)))
LILY_MATH1(saturate, LILY_BUILTIN(fminf)(LILY_BUILTIN(fmaxf)(x, 0.0f), 1.0f))
LILY_MATH1(sign, (x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f))

#define LILY_MATH2(name, expression)                             \
  LILY_FN float name(float x, float y) { return expression; }    \
  template <int N>                                               \
  LILY_FN vec<float, N> name(vec<float, N> a, vec<float, N> b) { \
    vec<float, N> r;                                             \
    for (int i = 0; i < N; i++) r.e[i] = name(a.e[i], b.e[i]);   \
    return r;                                                    \
  }
LILY_MATH2(pow, LILY_BUILTIN(powf)(x, y))
LILY_MATH2(powr, LILY_BUILTIN(powf)(x, y))
LILY_MATH2(fmod, LILY_BUILTIN(fmodf)(x, y))
LILY_MATH2(atan2, LILY_BUILTIN(atan2f)(x, y))
LILY_MATH2(copysign, LILY_BUILTIN(copysignf)(x, y))
LILY_MATH2(fmin, LILY_BUILTIN(fminf)(x, y))
LILY_MATH2(fmax, LILY_BUILTIN(fmaxf)(x, y))
#undef LILY_MATH2

LILY_FN float fma(float a, float b, float c) { return LILY_BUILTIN(fmaf)(a, b, c); }
LILY_FN half fma(half a, half b, half c) { return half(LILY_BUILTIN(fmaf)(float(a), float(b), float(c))); }
template <class T, int N>
LILY_FN vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = fma(a.e[i], b.e[i], c.e[i]);
  return r;
}
LILY_FN bool isnan(float x) { return x != x; }
LILY_FN bool isinf(float x) { return LILY_BUILTIN(fabsf)(x) > FLT_MAX; }
LILY_FN bool isfinite(float x) { return LILY_BUILTIN(fabsf)(x) <= FLT_MAX; }
LILY_FN float ldexp(float x, int exponent) { return LILY_BUILTIN(ldexpf)(x, exponent); }
LILY_FN float mix(float a, float b, float t) { return a + (b - a) * t; }
template <int N>
LILY_FN vec<float, N> mix(vec<float, N> a, vec<float, N> b, float t) {
  return a + (b - a) * t;
}

// min, max and clamp: both arguments of one type, as in Metal.
#define LILY_MIN_MAX(T)                             \
  LILY_FN T min(T a, T b) { return b < a ? b : a; } \
  LILY_FN T max(T a, T b) { return a < b ? b : a; } \
  LILY_FN T clamp(T x, T low, T high) { return min(max(x, low), high); }
LILY_MIN_MAX(int)
LILY_MIN_MAX(uint)
LILY_MIN_MAX(short)
LILY_MIN_MAX(ushort)
LILY_MIN_MAX(long)
LILY_MIN_MAX(ulong)
#undef LILY_MIN_MAX
LILY_FN float min(float a, float b) { return LILY_BUILTIN(fminf)(a, b); }
LILY_FN float max(float a, float b) { return LILY_BUILTIN(fmaxf)(a, b); }
LILY_FN float clamp(float x, float low, float high) { return min(max(x, low), high); }
bfloat min(bfloat, bfloat) = delete;
bfloat max(bfloat, bfloat) = delete;
template <class T, int N>
LILY_FN vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = min(a.e[i], b.e[i]);
  return r;
}
template <class T, int N>
LILY_FN vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = max(a.e[i], b.e[i]);
  return r;
}
template <class T, int N>
LILY_FN vec<T, N> clamp(vec<T, N> x, vec<T, N> low, vec<T, N> high) {
  return min(max(x, low), high);
}
LILY_FN int abs(int x) { return x < 0 ? -x : x; }
LILY_FN float abs(float x) { return fabs(x); }
template <int N>
LILY_FN vec<float, N> abs(vec<float, N> x) {
  return fabs(x);
}
template <class T>
LILY_FN T select(T a, lily_exact<T> b, bool condition) {
  return condition ? b : a;
}
template <class T, int N>
LILY_FN vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> condition) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.e[i] = condition.e[i] ? b.e[i] : a.e[i];
  return r;
}

LILY_FN uint popcount(uint x) { return static_cast<uint>(LILY_POPCOUNT(x)); }
LILY_FN uint clz(uint x) { return x == 0 ? 32u : static_cast<uint>(LILY_CLZ(x)); }
LILY_FN uint ctz(uint x) { return x == 0 ? 32u : 31u - static_cast<uint>(LILY_CLZ(x & (0u - x))); }
LILY_FN uint reverse_bits(uint x) {
  uint r = 0;
  for (int i = 0; i < 32; i++) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}
LILY_FN uint mulhi(uint a, uint b) { return static_cast<uint>((static_cast<ulong>(a) * b) >> 32); }
LILY_FN uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0u : (x >> offset) & (0xffffffffu >> (32u - bits));
}

#define LILY_MATH_VARIANTS \
  using metal::cos;        \
  using metal::cosh;       \
  using metal::exp;        \
  using metal::exp10;      \
  using metal::exp2;       \
  using metal::fmod;       \
  using metal::log;        \
  using metal::log10;      \
  using metal::log2;       \
  using metal::pow;        \
  using metal::powr;       \
  using metal::rsqrt;      \
  using metal::sin;        \
  using metal::sinh;       \
  using metal::sqrt;       \
  using metal::tan;        \
  using metal::tanh;       \
  LILY_FN float divide(float a, float b) { return a / b; }
namespace precise {
LILY_MATH_VARIANTS
}
namespace fast {
LILY_MATH_VARIANTS
}
#undef LILY_MATH_VARIANTS
#undef LILY_MATH1

}  // namespace metal
