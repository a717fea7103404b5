// device/cuda/kernel_library.h -- the kernels translated to CUDA C++, as the build left them: sources, header, index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace lily::device::cuda {

struct KernelSlot {
  std::uint32_t index = 0;
  bool written = false;
  std::uint32_t bytes = 0;  // of an argument struct; 0: a buffer
};

// One kernel that can be launched. Its parameters are its slots, in order.
struct KernelEntry {
  std::string name;
  std::string file;
  std::uint32_t number = 0;  // in the file
  std::uint32_t max_threads = 0;
  bool takes_threadgroup_memory = false;
  std::vector<KernelSlot> slots;
  std::map<std::uint32_t, std::string> constants;  // function constants that it uses, by index
};

class KernelLibrary {
 public:
  // `folder` empty: the one that ships beside this module. Throws Error(backend).
  explicit KernelLibrary(std::filesystem::path folder);

  // Throws Error(backend) when there is no kernel of that name.
  [[nodiscard]] const KernelEntry& find(const std::string& kernel) const;
  [[nodiscard]] std::vector<std::string> names() const;

  // What NVRTC compiles. Throws Error(backend) when a constant that the kernel uses has no value.
  [[nodiscard]] std::string source(const KernelEntry& entry, std::span<const FunctionConstant> constants) const;
  [[nodiscard]] const std::string& header() const { return header_; }

 private:
  void read_index();

  std::filesystem::path folder_;
  std::string header_;
  std::unordered_map<std::string, std::string> sources_;  // by file
  std::unordered_map<std::string, KernelEntry> entries_;
};

}  // namespace lily::device::cuda
