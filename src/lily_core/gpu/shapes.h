// gpu/shapes.h -- the shapes that the kernels are written for.
#pragma once

#include "weights/config.h"

namespace lily::gpu {

// Throws Error(config) naming the field that no kernel takes; metal/lily_args.h says where its limits come from.
void require_shapes(const ModelConfig& config);

}  // namespace lily::gpu
