// device/msl/fragment.h -- the lane layout of an 8x8 simdgroup_matrix on Apple GPUs: each lane holds two neighbouring
// columns of one row. Code that uses thread_elements() with (row, column) relies on it.
#pragma once

#include "base.h"

namespace metal {

LILY_FN constexpr int lily_fragment_row(int lane) { return ((lane >> 4) & 1) * 4 + ((lane >> 1) & 3); }
LILY_FN constexpr int lily_fragment_column(int lane) { return ((lane >> 3) & 1) * 4 + (lane & 1) * 2; }
LILY_FN constexpr int lily_fragment_lane(int row, int column) {
  return ((row >> 2) << 4) | ((column >> 2) << 3) | ((row & 3) << 1) | ((column >> 1) & 1);
}

}  // namespace metal
