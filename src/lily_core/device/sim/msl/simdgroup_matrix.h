// sim/msl/simdgroup_matrix.h -- 8x8 matrices spread over the lanes of a simdgroup, in Apple's layout.
#pragma once

#include "runtime/matrix_product.h"
#include "simd.h"

namespace metal {

LILY_FN uint lily_lane() { return ::lily_sim::current_simdgroup->lane; }

}  // namespace metal

#include "device/msl/matrix_elements.h"

namespace metal {

template <class D, class A, class B, class C>
LILY_FN void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                           const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                           LILY_SITE) {
  ::lily_sim::Simdgroup& group = *::lily_sim::current_simdgroup;
  float* left = reinterpret_cast<float*>(group.exchange[group.parity]);  // row-major 8x8 each
  float* right = left + 64;
  float* sum = reinterpret_cast<float*>(group.result[group.parity]);
  const int lane = static_cast<int>(group.lane);
  const int at = lily_fragment_row(lane) * 8 + lily_fragment_column(lane);
  for (int i = 0; i < 2; i++) {
    left[at + i] = float(a.elements.e[i]);
    right[at + i] = float(b.elements.e[i]);
    sum[at + i] = float(c.elements.e[i]);
  }
  if (::lily_sim::arrive(group, ::lily_sim::op_matrix, file, line)) {
    ::lily_sim::multiply_8x8(left, right, sum);
    ::lily_sim::complete(group);
  }
  for (int i = 0; i < 2; i++) d.elements.e[i] = D(sum[at + i]);
}
template <class D, class A, class B>
LILY_FN void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                const simdgroup_matrix<B, 8, 8>& b, LILY_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0.0f)), file, line);
}

}  // namespace metal
