// device/pipeline_key.h -- names a kernel together with the values of its function constants.
#pragma once

#include <span>
#include <string>

#include "device/device.h"

namespace lily::device {

// "gemv_segments,0=4,1=64"
[[nodiscard]] inline std::string pipeline_key(const std::string& kernel, std::span<const FunctionConstant> constants) {
  std::string key = kernel;
  for (const FunctionConstant& constant : constants) {
    key.append(",").append(std::to_string(constant.index)).append("=").append(std::to_string(constant.value));
  }
  return key;
}

}  // namespace lily::device
