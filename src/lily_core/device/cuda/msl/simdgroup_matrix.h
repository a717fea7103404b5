// cuda/msl/simdgroup_matrix.h -- 8x8 matrices spread over the lanes of a warp, in Apple's layout.
//
// Products of 16-bit matrices run on the tensor cores, with float sums; their lanes hold other elements than Apple's,
// so each product exchanges registers. Code in a hurry uses the tile of lily_tile.h.
#pragma once

#include "device/msl/fragment.h"
#include "simd.h"
#include "tensor_core.h"

namespace metal {

template <class T, int COLUMNS, int ROWS>
struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "simdgroup_matrix is 8x8 only");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  LILY_FN explicit simdgroup_matrix(T diagonal) {
    const int lane = static_cast<int>(lily_lane());
    const int row = lily_fragment_row(lane), column = lily_fragment_column(lane);
    elements.e[0] = row == column ? diagonal : T(0.0f);
    elements.e[1] = row == column + 1 ? diagonal : T(0.0f);
  }
  LILY_FN vec<T, 2>& thread_elements() { return elements; }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;

template <class T, int COLUMNS, int ROWS>
LILY_FN simdgroup_matrix<T, COLUMNS, ROWS> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, COLUMNS, ROWS> matrix;
  matrix.elements.e[0] = matrix.elements.e[1] = value;
  return matrix;
}

// Offset, in elements, of this lane's element i in a matrix with `stride` elements a row.
LILY_FN ulong lily_fragment_offset(int i, ulong stride, ulong2 origin, bool transpose) {
  const int lane = static_cast<int>(lily_lane());
  const int row = lily_fragment_row(lane), column = lily_fragment_column(lane) + i;
  return (origin.y + ulong(transpose ? column : row)) * stride + origin.x + ulong(transpose ? row : column);
}
template <class T, class P>
LILY_FN void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, P* source, ulong stride = 8, ulong2 origin = ulong2(0),
                            bool transpose = false) {
  static_assert(is_same_v<const P, const T>, "simdgroup_load: pointer and matrix element types differ");
  for (int i = 0; i < 2; i++) matrix.elements.e[i] = source[lily_fragment_offset(i, stride, origin, transpose)];
}
template <class T>
LILY_FN void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, lily_exact<T>* target, ulong stride = 8,
                             ulong2 origin = ulong2(0), bool transpose = false) {
  for (int i = 0; i < 2; i++) target[lily_fragment_offset(i, stride, origin, transpose)] = matrix.elements.e[i];
}

// sum[0..1] += a b for 16-bit a and b.
template <class T>
LILY_FN void lily_multiply_on_tensor_cores(vec<T, 2> a, vec<T, 2> b, float* sum) {
  const int lane = static_cast<int>(lily_lane());
  const int apple = lily_fragment_lane(lane >> 2, (lane & 3) * 2);  // holds what this lane holds for a tensor core
  const int tensor = lily_fragment_row(lane) * 4 + lily_fragment_column(lane) / 2;
  const uint left[2] = {__shfl_sync(kAllLanes, lily_bit_cast<uint>(a), apple), 0u};
  const uint right = lily_transpose_8x8(__shfl_sync(kAllLanes, lily_bit_cast<uint>(b), apple));
  float sums[4] = {__shfl_sync(kAllLanes, sum[0], apple), __shfl_sync(kAllLanes, sum[1], apple), 0.0f, 0.0f};
  TensorCore<T>::multiply_16x8x8(sums, left, right);
  sum[0] = __shfl_sync(kAllLanes, sums[0], tensor);
  sum[1] = __shfl_sync(kAllLanes, sums[1], tensor);
}

// The same in float, for any types.
template <class A, class B>
LILY_FN void lily_multiply_in_float(vec<A, 2> a, vec<B, 2> b, float* sum) {
  const int lane = static_cast<int>(lily_lane());
  const int row = lily_fragment_row(lane), column = lily_fragment_column(lane);
  const float right[2] = {float(b.e[0]), float(b.e[1])};
#pragma unroll
  for (int k = 0; k < 8; k++) {
    const float left = __shfl_sync(kAllLanes, float(a.e[k & 1]), lily_fragment_lane(row, k));
    const int source = lily_fragment_lane(k, column);
    for (int i = 0; i < 2; i++) sum[i] = ::fmaf(left, __shfl_sync(kAllLanes, right[i], source), sum[i]);
  }
}

template <class D, class A, class B, class C>
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                           const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
  float sum[2] = {float(c.elements.e[0]), float(c.elements.e[1])};
  if constexpr (is_same_v<A, B> && sizeof(A) == 2) {
    lily_multiply_on_tensor_cores(a.elements, b.elements, sum);
  } else {
    lily_multiply_in_float(a.elements, b.elements, sum);
  }
  d.elements.e[0] = D(sum[0]);
  d.elements.e[1] = D(sum[1]);
}
template <class D, class A, class B>
LILY_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f)));
}

}  // namespace metal
