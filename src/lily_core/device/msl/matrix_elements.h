// device/msl/matrix_elements.h -- simdgroup_matrix as the two elements that each lane holds: filling, loading, storing.
// The device's own header comes first, with lily_lane(); products are the device's too.
#pragma once

#include "device/msl/fragment.h"

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

}  // namespace metal
