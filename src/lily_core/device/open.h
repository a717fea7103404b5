// device/open.h -- the devices of this build, by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace lily::device {

[[nodiscard]] std::vector<std::string> available_devices();

// Throws Error(backend) naming the available ones when there is no such device here.
[[nodiscard]] std::shared_ptr<Device> open(const std::string& name);

}  // namespace lily::device
