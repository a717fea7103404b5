// cuda/msl/simdgroup_matrix.h -- 8x8 matrices spread over the lanes of a warp, in Apple's layout.
//
// Products of 16-bit matrices run on the tensor cores, with float sums; their lanes hold other elements than Apple's,
// so each product exchanges registers. Code in a hurry uses the tile of lily_tile.h.
#pragma once

#include "device/msl/matrix_elements.h"
#include "simd.h"
#include "tensor_core.h"

namespace metal {

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
