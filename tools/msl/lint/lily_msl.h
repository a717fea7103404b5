// tools/msl/lint/lily_msl.h -- declarations of the Metal vocabulary with real address spaces, for clang to check only.
//
// Included twice: by clang as C++14, which checks implicit conversions and calls through the wrong space, and by clang
// as C++ for OpenCL, which checks casts between spaces. Nothing here is run.
#pragma once

#ifdef __OPENCL_CPP_VERSION__
#define device __global
#define threadgroup __local
#define constant __constant
#define thread
#define local lily_name_local
#define global lily_name_global
#define atomic_int lily_name_atomic_int
#define atomic_uint lily_name_atomic_uint
#define atomic_float lily_name_atomic_float
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#else
#define device __attribute__((address_space(1)))
#define threadgroup __attribute__((address_space(3)))
#define constant __attribute__((address_space(2))) const
#define thread
typedef _Float16 half;
#endif
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef ulong size_t;
#define METAL_FUNC inline __attribute__((always_inline))
typedef __bf16 bfloat;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.40282347e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_EPSILON 1.19209290e-7f
#endif
#ifndef M_PI_F
#define M_PI_F 3.14159265358979323846f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LN2_F 0.693147180559945309417f
#endif

// The threadgroup variable that a kernel declares.
template <class T>
threadgroup T& lily_threadgroup_variable();

namespace metal {

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <class T>
struct lily_exact_type {
  typedef T type;
};
#define LILY_EXACT(T) typename lily_exact_type<T>::type

// Vector constructors: float4(...) is a macro for lily_make<float, 4>(...).
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(T a) {
  return (vec<T, N>)(a);
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(T a, T b) {
  return vec<T, N>{a, b};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(T a, T b, T c) {
  return vec<T, N>{a, b, c};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(T a, T b, T c, T d) {
  return vec<T, N>{a, b, c, d};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(vec<T, 2> a, vec<T, 2> b) {
  return vec<T, N>{a.x, a.y, b.x, b.y};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(vec<T, 2> a, T b, T c) {
  return vec<T, N>{a.x, a.y, b, c};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(T a, T b, vec<T, 2> c) {
  return vec<T, N>{a, b, c.x, c.y};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(vec<T, 3> a, T b) {
  return vec<T, N>{a.x, a.y, a.z, b};
}
template <class T, int N>
METAL_FUNC vec<T, N> lily_make(vec<T, N> a) {
  return a;
}
template <class T, int N, class U>
METAL_FUNC vec<T, N> lily_make(vec<U, N> a) {
  return __builtin_convertvector(a, vec<T, N>);
}

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
template <bool C, class T, class F>
struct conditional {
  typedef T type;
};
template <class T, class F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool C, class T, class F>
using conditional_t = typename conditional<C, T, F>::type;
template <bool C, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool C, class T = void>
using enable_if_t = typename enable_if<C, T>::type;
template <class T>
struct numeric_limits {
  static constexpr T max() { return T(0); }
  static constexpr T min() { return T(0); }
  static constexpr T lowest() { return T(0); }
  static constexpr T infinity() { return T(0); }
};

#define LILY_VECTOR_TYPES(t) \
  typedef vec<t, 2> t##2;    \
  typedef vec<t, 3> t##3;    \
  typedef vec<t, 4> t##4;
LILY_VECTOR_TYPES(char)
LILY_VECTOR_TYPES(uchar)
LILY_VECTOR_TYPES(short)
LILY_VECTOR_TYPES(ushort)
LILY_VECTOR_TYPES(int)
LILY_VECTOR_TYPES(uint)
LILY_VECTOR_TYPES(long)
LILY_VECTOR_TYPES(ulong)
LILY_VECTOR_TYPES(float)
LILY_VECTOR_TYPES(half)
LILY_VECTOR_TYPES(bfloat)
#undef LILY_VECTOR_TYPES

#define LILY_MATH1(name) \
  float name(float);     \
  template <int N>       \
  vec<float, N> name(vec<float, N>);
#define LILY_MATH2(name)    \
  float name(float, float); \
  template <int N>          \
  vec<float, N> name(vec<float, N>, vec<float, N>);
#define LILY_TRANSCENDENTAL                                                                                       \
  LILY_MATH1(exp) LILY_MATH1(exp2) LILY_MATH1(exp10) LILY_MATH1(log) LILY_MATH1(log2) LILY_MATH1(log10)            \
  LILY_MATH1(sqrt) LILY_MATH1(rsqrt) LILY_MATH1(sin) LILY_MATH1(cos) LILY_MATH1(tan) LILY_MATH1(sinh)              \
  LILY_MATH1(cosh) LILY_MATH1(tanh) LILY_MATH2(pow) LILY_MATH2(powr) LILY_MATH2(fmod)
LILY_TRANSCENDENTAL
LILY_MATH1(floor) LILY_MATH1(ceil) LILY_MATH1(rint) LILY_MATH1(round) LILY_MATH1(trunc) LILY_MATH1(fabs)
LILY_MATH1(fract) LILY_MATH1(saturate) LILY_MATH1(sign)
LILY_MATH2(atan2) LILY_MATH2(copysign) LILY_MATH2(fmin) LILY_MATH2(fmax)
namespace precise {
LILY_TRANSCENDENTAL float divide(float, float);
}
namespace fast {
LILY_TRANSCENDENTAL float divide(float, float);
}
float fma(float, float, float);
half fma(half, half, half);
template <class T, int N>
vec<T, N> fma(vec<T, N>, vec<T, N>, vec<T, N>);
bool isnan(float);
bool isinf(float);
bool isfinite(float);
float ldexp(float, int);
float mix(float, float, float);
template <int N>
vec<float, N> mix(vec<float, N>, vec<float, N>, float);
#define LILY_MIN_MAX(T) \
  T min(T, T);          \
  T max(T, T);          \
  T clamp(T, T, T);
LILY_MIN_MAX(int) LILY_MIN_MAX(uint) LILY_MIN_MAX(short) LILY_MIN_MAX(ushort) LILY_MIN_MAX(long) LILY_MIN_MAX(ulong)
LILY_MIN_MAX(float)
template <class T, int N>
vec<T, N> min(vec<T, N>, vec<T, N>);
template <class T, int N>
vec<T, N> max(vec<T, N>, vec<T, N>);
template <class T, int N>
vec<T, N> clamp(vec<T, N>, vec<T, N>, vec<T, N>);
int abs(int);
float abs(float);
template <class T>
T select(T, LILY_EXACT(T), bool);
template <class T, int N>
T dot(vec<T, N>, vec<T, N>);
template <class T, int N>
bool any(vec<T, N>);
template <class T, int N>
bool all(vec<T, N>);
uint popcount(uint);
uint clz(uint);
uint ctz(uint);
uint reverse_bits(uint);
uint mulhi(uint, uint);
uint extract_bits(uint, uint, uint);

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define LILY_SIMD1(name) \
  template <class T>     \
  T name(T);
LILY_SIMD1(simd_sum) LILY_SIMD1(simd_product) LILY_SIMD1(simd_max) LILY_SIMD1(simd_min) LILY_SIMD1(simd_and)
LILY_SIMD1(simd_or) LILY_SIMD1(simd_xor) LILY_SIMD1(simd_prefix_exclusive_sum) LILY_SIMD1(simd_prefix_inclusive_sum)
LILY_SIMD1(simd_broadcast_first)
#define LILY_SIMD2(name) \
  template <class T>     \
  T name(T, ushort);
LILY_SIMD2(simd_shuffle) LILY_SIMD2(simd_shuffle_xor) LILY_SIMD2(simd_shuffle_up) LILY_SIMD2(simd_shuffle_down)
LILY_SIMD2(simd_broadcast)
struct simd_vote {
  ulong mask;
  explicit operator ulong() const { return mask; }
  bool any() const { return mask != 0; }
  bool all() const { return mask == 0xffffffffu; }
};
simd_vote simd_ballot(bool);
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();

enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T lily_opaque;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
#define LILY_ATOMIC(space, name) \
  template <class T>             \
  T name(volatile space atomic<T>*, LILY_EXACT(T), memory_order);
#define LILY_ATOMICS(space)                                                                                      \
  template <class T>                                                                                             \
  T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                                         \
  template <class T>                                                                                             \
  void atomic_store_explicit(volatile space atomic<T>*, LILY_EXACT(T), memory_order);                            \
  template <class T>                                                                                             \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, thread T*, LILY_EXACT(T), memory_order,  \
                                             memory_order);                                                      \
  LILY_ATOMIC(space, atomic_fetch_add_explicit)                                                                  \
  LILY_ATOMIC(space, atomic_fetch_sub_explicit)                                                                  \
  LILY_ATOMIC(space, atomic_fetch_max_explicit)                                                                  \
  LILY_ATOMIC(space, atomic_fetch_min_explicit)                                                                  \
  LILY_ATOMIC(space, atomic_fetch_and_explicit)                                                                  \
  LILY_ATOMIC(space, atomic_fetch_or_explicit)                                                                   \
  LILY_ATOMIC(space, atomic_exchange_explicit)
LILY_ATOMICS(device)
LILY_ATOMICS(threadgroup)

template <class T, int COLUMNS, int ROWS>
struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "simdgroup_matrix is 8x8 only");
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T) {}
  vec<T, 2> lily_elements;
  thread vec<T, 2>& thread_elements() { return lily_elements; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int COLUMNS, int ROWS>
simdgroup_matrix<T, COLUMNS, ROWS> make_filled_simdgroup_matrix(T);
#define LILY_MATRIX_ACCESS(space)                                                                                   \
  template <class T>                                                                                                \
  void simdgroup_load(thread simdgroup_matrix<T, 8, 8>&, const space T*, ulong = 8, ulong2 = (ulong2)(0), bool = false); \
  template <class T>                                                                                                \
  void simdgroup_store(const thread simdgroup_matrix<T, 8, 8>&, space T*, ulong = 8, ulong2 = (ulong2)(0), bool = false);
LILY_MATRIX_ACCESS(device)
LILY_MATRIX_ACCESS(threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8>&, const thread simdgroup_matrix<A, 8, 8>&,
                                   const thread simdgroup_matrix<B, 8, 8>&, const thread simdgroup_matrix<C, 8, 8>&);
template <class D, class A, class B>
void simdgroup_multiply(thread simdgroup_matrix<D, 8, 8>&, const thread simdgroup_matrix<A, 8, 8>&,
                        const thread simdgroup_matrix<B, 8, 8>&);

}  // namespace metal

template <class To, class From>
METAL_FUNC To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of one size");
  return __builtin_bit_cast(To, from);
}

// A type that is followed by arguments constructs; elsewhere these macros do not apply.
#define LILY_MAKE(t, n) ::metal::lily_make<t, n>
#define char2(...) LILY_MAKE(char, 2)(__VA_ARGS__)
#define char4(...) LILY_MAKE(char, 4)(__VA_ARGS__)
#define uchar2(...) LILY_MAKE(uchar, 2)(__VA_ARGS__)
#define uchar4(...) LILY_MAKE(uchar, 4)(__VA_ARGS__)
#define short2(...) LILY_MAKE(short, 2)(__VA_ARGS__)
#define short4(...) LILY_MAKE(short, 4)(__VA_ARGS__)
#define ushort2(...) LILY_MAKE(ushort, 2)(__VA_ARGS__)
#define ushort4(...) LILY_MAKE(ushort, 4)(__VA_ARGS__)
#define int2(...) LILY_MAKE(int, 2)(__VA_ARGS__)
#define int3(...) LILY_MAKE(int, 3)(__VA_ARGS__)
#define int4(...) LILY_MAKE(int, 4)(__VA_ARGS__)
#define uint2(...) LILY_MAKE(uint, 2)(__VA_ARGS__)
#define uint3(...) LILY_MAKE(uint, 3)(__VA_ARGS__)
#define uint4(...) LILY_MAKE(uint, 4)(__VA_ARGS__)
#define ulong2(...) LILY_MAKE(ulong, 2)(__VA_ARGS__)
#define float2(...) LILY_MAKE(float, 2)(__VA_ARGS__)
#define float3(...) LILY_MAKE(float, 3)(__VA_ARGS__)
#define float4(...) LILY_MAKE(float, 4)(__VA_ARGS__)
#define half2(...) LILY_MAKE(half, 2)(__VA_ARGS__)
#define half4(...) LILY_MAKE(half, 4)(__VA_ARGS__)
#define bfloat2(...) LILY_MAKE(bfloat, 2)(__VA_ARGS__)
#define bfloat4(...) LILY_MAKE(bfloat, 4)(__VA_ARGS__)
