// device/metal/tensor_self_test.h -- matrix products by tensor operations against the plain kernels, on random data.
#pragma once

#include <string>

#include "device/device.h"

namespace lily::device::metal {

// Runs gemm_affine_tensor_m32 and _m64 and the kernels they stand in for on small products of every format: more than
// eight rows, ragged edges, dense and grouped by expert. Empty when all results agree with a product in double
// precision; else the first that does not. Throws Error when a pass fails.
[[nodiscard]] std::string tensor_self_test(Device& device);

}  // namespace lily::device::metal
