// device/metal/absent.cpp -- device/metal.h in builds for other systems than macOS.
#include "base/error.h"
#include "device/metal.h"

namespace lily::device {

bool has_metal() { return false; }

std::shared_ptr<Device> open_metal() { throw Error(ErrorKind::backend, "Metal exists on macOS only"); }

std::optional<MetalFacts> metal_facts() { return std::nullopt; }

}  // namespace lily::device
