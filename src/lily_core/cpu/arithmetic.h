// cpu/arithmetic.h -- the number of the CPU kernels' arithmetic, which saved states carry.
#pragma once

#include <cstdint>

namespace lily::cpu {

// One more whenever the kernels give other bits for the same input, so that no state is continued by arithmetic that
// would not have made it. tests/cpp/test_pinned_kernels.cpp notices. 2: attention scores from 16-bit codes.
inline constexpr std::int64_t kArithmetic = 2;

}  // namespace lily::cpu
