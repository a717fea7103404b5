// base/gpu_options.cpp -- checks of the options.
#include "base/gpu_options.h"

#include <cmath>
#include <string>

#include "base/error.h"

namespace lily::gpu {

void Options::validate() const {
  if (tile_rows != 0 && tile_rows != 16 && tile_rows != 32 && tile_rows != 64) {
    throw Error(ErrorKind::config,
                "tile_rows must be 16, 32 or 64 (0: by the experts' load), not " + std::to_string(tile_rows));
  }
  if (blocked_attention_threshold < 1) {
    throw Error(ErrorKind::config, "blocked_attention_threshold must be at least 1 position");
  }
  if (!(std::isfinite(pass_seconds) && pass_seconds >= 0.0)) {
    throw Error(ErrorKind::config, "pass_seconds must be a number of at least 0 (0: the device's own limit)");
  }
}

}  // namespace lily::gpu
