// device/msl/vector.h -- vec<T, 2..4> with Metal's sizes and alignments. Swizzles are read-only: the translator turns
// v.zw into v.lily_swizzle<2, 3>().
#pragma once

#include "float16.h"

namespace metal {

template <class T, int N>
struct vec;

template <class T>
struct lily_shape {
  static constexpr int count = 1;
  using element = T;
};
template <class T, int N>
struct lily_shape<vec<T, N>> {
  static constexpr int count = N;
  using element = T;
};

template <class T, int N>
struct lily_storage;
template <class T>
struct alignas(2 * sizeof(T)) lily_storage<T, 2> {
  union {
    struct {
      T x, y;
    };
    T e[2];
  };
};
template <class T>
struct alignas(4 * sizeof(T)) lily_storage<T, 3> {
  union {
    struct {
      T x, y, z;
    };
    T e[3];
  };
};
template <class T>
struct alignas(4 * sizeof(T)) lily_storage<T, 4> {
  union {
    struct {
      T x, y, z, w;
    };
    T e[4];
  };
};

template <class T, int N>
struct vec : lily_storage<T, N> {
  using lily_storage<T, N>::e;

  vec() = default;
  vec(const vec&) = default;
  vec& operator=(const vec&) & = default;  // not on temporaries: v.lily_swizzle<...>() = ... must not compile

  LILY_FN vec(T value) {
    for (int i = 0; i < N; i++) e[i] = value;
  }
  template <class U>
  LILY_FN explicit vec(vec<U, N> other) {
    for (int i = 0; i < N; i++) e[i] = static_cast<T>(other.e[i]);
  }
  // Scalars and shorter vectors that make up N elements.
  template <class A, class B, class... Rest,
            class = enable_if_t<((lily_shape<A>::count + lily_shape<B>::count) + ... + lily_shape<Rest>::count) == N>>
  LILY_FN vec(A a, B b, Rest... rest) {
    int at = 0;
    put(at, a);
    put(at, b);
    (put(at, rest), ...);
  }

  LILY_FN T& operator[](int i) { return e[i]; }
  LILY_FN const T& operator[](int i) const { return e[i]; }
  LILY_FN T& operator[](uint i) { return e[i]; }
  LILY_FN const T& operator[](uint i) const { return e[i]; }
  template <int... I>
  LILY_FN vec<T, static_cast<int>(sizeof...(I))> lily_swizzle() const {
    return vec<T, static_cast<int>(sizeof...(I))>(e[I]...);
  }

 private:
  template <class U>
  LILY_FN void put(int& at, U value) {
    if constexpr (is_same_v<U, T>) {
      e[at++] = value;
    } else if constexpr (lily_is_integer<U>::value || is_same_v<U, float>) {
      static_assert(is_same_v<T, float> || lily_is_integer<T>::value, "narrow to bfloat and half explicitly");
      e[at++] = static_cast<T>(value);
    } else {
      const T converted = value;
      e[at++] = converted;
    }
  }
  template <class U, int M>
  LILY_FN void put(int& at, vec<U, M> value) {
    static_assert(is_same_v<U, T>, "a vector is made of vectors of its own element type");
    for (int i = 0; i < M; i++) e[at++] = value.e[i];
  }
};

#define LILY_VECTOR_OPERATOR(op)                                        \
  template <class T, int N>                                             \
  LILY_FN vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {             \
    vec<T, N> r;                                                        \
    for (int i = 0; i < N; i++) r.e[i] = a.e[i] op b.e[i];              \
    return r;                                                           \
  }                                                                     \
  template <class T, int N>                                             \
  LILY_FN vec<T, N> operator op(vec<T, N> a, lily_exact<T> b) {         \
    vec<T, N> r;                                                        \
    for (int i = 0; i < N; i++) r.e[i] = a.e[i] op b;                   \
    return r;                                                           \
  }                                                                     \
  template <class T, int N>                                             \
  LILY_FN vec<T, N> operator op(lily_exact<T> a, vec<T, N> b) {         \
    vec<T, N> r;                                                        \
    for (int i = 0; i < N; i++) r.e[i] = a op b.e[i];                   \
    return r;                                                           \
  }                                                                     \
  template <class T, int N>                                             \
  LILY_FN vec<T, N>& operator op## = (vec<T, N> & a, vec<T, N> b) {     \
    a = a op b;                                                         \
    return a;                                                           \
  }                                                                     \
  template <class T, int N>                                             \
  LILY_FN vec<T, N>& operator op## = (vec<T, N> & a, lily_exact<T> b) { \
    a = a op b;                                                         \
    return a;                                                           \
  }
LILY_VECTOR_OPERATOR(+)
LILY_VECTOR_OPERATOR(-)
LILY_VECTOR_OPERATOR(*)
LILY_VECTOR_OPERATOR(/)
LILY_VECTOR_OPERATOR(%)
LILY_VECTOR_OPERATOR(&)
LILY_VECTOR_OPERATOR(|)
LILY_VECTOR_OPERATOR(^)
LILY_VECTOR_OPERATOR(<<)
LILY_VECTOR_OPERATOR(>>)
#undef LILY_VECTOR_OPERATOR

#define LILY_VECTOR_COMPARISON(op)                                 \
  template <class T, int N>                                        \
  LILY_FN vec<bool, N> operator op(vec<T, N> a, vec<T, N> b) {     \
    vec<bool, N> r;                                                \
    for (int i = 0; i < N; i++) r.e[i] = a.e[i] op b.e[i];         \
    return r;                                                      \
  }                                                                \
  template <class T, int N>                                        \
  LILY_FN vec<bool, N> operator op(vec<T, N> a, lily_exact<T> b) { \
    vec<bool, N> r;                                                \
    for (int i = 0; i < N; i++) r.e[i] = a.e[i] op b;              \
    return r;                                                      \
  }
LILY_VECTOR_COMPARISON(==)
LILY_VECTOR_COMPARISON(!=)
LILY_VECTOR_COMPARISON(<)
LILY_VECTOR_COMPARISON(<=)
LILY_VECTOR_COMPARISON(>)
LILY_VECTOR_COMPARISON(>=)
#undef LILY_VECTOR_COMPARISON

#define LILY_VECTOR_UNARY(op)                       \
  template <class T, int N>                         \
  LILY_FN vec<T, N> operator op(vec<T, N> a) {      \
    vec<T, N> r;                                    \
    for (int i = 0; i < N; i++) r.e[i] = op a.e[i]; \
    return r;                                       \
  }
LILY_VECTOR_UNARY(-)
LILY_VECTOR_UNARY(~)
LILY_VECTOR_UNARY(!)
#undef LILY_VECTOR_UNARY

#define LILY_VECTOR_TYPES(t) \
  using t##2 = vec<t, 2>;    \
  using t##3 = vec<t, 3>;    \
  using t##4 = vec<t, 4>;
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
LILY_VECTOR_TYPES(bool)
#undef LILY_VECTOR_TYPES

template <class T, int N>
LILY_FN T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a.e[0] * b.e[0];
  for (int i = 1; i < N; i++) sum += a.e[i] * b.e[i];
  return sum;
}
template <int N>
LILY_FN bool any(vec<bool, N> a) {
  bool r = false;
  for (int i = 0; i < N; i++) r = r || a.e[i];
  return r;
}
template <int N>
LILY_FN bool all(vec<bool, N> a) {
  bool r = true;
  for (int i = 0; i < N; i++) r = r && a.e[i];
  return r;
}

}  // namespace metal
