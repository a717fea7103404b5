// device/metal.h -- Apple's GPU as a device, and facts about it. No Metal call before open_metal() or
// metal_facts().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/device.h"

namespace lily::device {

// What a machine with Metal has.
struct MetalFacts {
  std::string device;        // "Apple M3 Max"; empty: there is no GPU for this process
  std::string architecture;  // "applegpu_g15s"
  std::string family;        // the highest that it supports
  std::string system;        // "Version 26.2 (Build ...)"
  std::string language;      // of the plain kernels
  std::string problem;       // why the device cannot be opened; empty: it can
  std::uint64_t working_set_bytes = 0;
  std::uint64_t buffer_bytes = 0;  // most of one buffer
  std::uint64_t threadgroup_bytes = 0;
  std::uint64_t page_bytes = 0;
  bool unified_memory = false;
  bool residency_sets = false;
  bool tensor_gemm = false;
  std::string tensor_reason;
  std::uint64_t kernels = 0;          // in the packaged sources
  std::vector<std::string> rejected;  // the compiler's messages about sources that it rejects
};

// Whether this process can see a GPU that the device takes.
[[nodiscard]] bool has_metal();
// Throws Error(backend) saying what is missing.
[[nodiscard]] std::shared_ptr<Device> open_metal();
// Nothing in a build without Metal. Opens the device to learn what it would use, and compiles the sources.
[[nodiscard]] std::optional<MetalFacts> metal_facts();

}  // namespace lily::device
