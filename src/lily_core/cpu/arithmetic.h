// cpu/arithmetic.h -- the version of the CPU kernels' arithmetic, which saved states record.
#pragma once

#include <cstdint>

namespace lily::cpu {

// Incremented whenever the kernels give other bits for the same input, so that no state is continued with different
// arithmetic. tests/cpp/test_pinned_kernels.cpp notices. 2: attention scores from 16-bit codes.
inline constexpr std::int64_t kArithmetic = 2;

}  // namespace lily::cpu
