// device/msl/base.h -- the basis of the Metal vocabulary for C++ compilers: scalar types, traits, bit casts.
//
// These headers include no standard header on purpose: a name that Metal lacks must stay unknown in kernels here, too.
// LILY_FN marks every function; the device's own umbrella header (lily_msl.h) defines it, and what else a compiler's
// built-ins differ in.
#pragma once

#define METAL_FUNC LILY_FN

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
#if !defined(LILY_STANDARD_INTEGERS)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = unsigned long;
#endif

#define INFINITY LILY_INFINITY
#define NAN LILY_NAN
#define FLT_MAX 3.40282347e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.19209290e-7f
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f

namespace metal {

template <class T>
struct lily_identity {
  using type = T;
};
// A parameter that takes no part in template deduction, so that scalars convert.
template <class T>
using lily_exact = typename lily_identity<T>::type;

template <bool Condition, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool Condition, class T = void>
using enable_if_t = typename enable_if<Condition, T>::type;

template <class A, class B>
struct is_same {
  static constexpr bool value = false;
};
template <class A>
struct is_same<A, A> {
  static constexpr bool value = true;
};
template <class A, class B>
constexpr bool is_same_v = is_same<A, B>::value;

template <bool Condition, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool Condition, class T, class F>
using conditional_t = typename conditional<Condition, T, F>::type;

template <class T>
struct lily_is_integer {
  static constexpr bool value = false;
};
#define LILY_INTEGER(T)                 \
  template <>                           \
  struct lily_is_integer<T> {           \
    static constexpr bool value = true; \
  };
LILY_INTEGER(bool)
LILY_INTEGER(char)
LILY_INTEGER(signed char)
LILY_INTEGER(uchar)
LILY_INTEGER(short)
LILY_INTEGER(ushort)
LILY_INTEGER(int)
LILY_INTEGER(uint)
LILY_INTEGER(long)
LILY_INTEGER(ulong)
#undef LILY_INTEGER

template <class To, class From>
LILY_FN To lily_bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  To to;
  LILY_MEMCPY(&to, &from, sizeof(To));
  return to;
}

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
  LILY_FN static constexpr float infinity() { return LILY_INFINITY; }
  LILY_FN static constexpr float max() { return FLT_MAX; }
  LILY_FN static constexpr float lowest() { return -FLT_MAX; }
};
template <>
struct numeric_limits<uint> {
  LILY_FN static constexpr uint max() { return 0xffffffffu; }
  LILY_FN static constexpr uint min() { return 0u; }
};
template <>
struct numeric_limits<int> {
  LILY_FN static constexpr int max() { return 0x7fffffff; }
  LILY_FN static constexpr int min() { return -0x7fffffff - 1; }
};

}  // namespace metal

template <class To, class From>
LILY_FN To as_type(From from) {
  return metal::lily_bit_cast<To>(from);
}
