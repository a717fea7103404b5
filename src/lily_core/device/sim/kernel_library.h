// device/sim/kernel_library.h -- loads a shared library of translated kernels.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/sim/runtime/abi.h"

namespace lily::device::sim {

class KernelLibrary {
 public:
  // `path` empty: the library that ships beside this module. Throws Error(backend).
  KernelLibrary(std::filesystem::path path, bool checked);
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  [[nodiscard]] const lily_sim::Library& api() const { return *api_; }
  // Null when there is no kernel of that name.
  [[nodiscard]] const lily_sim::Entry* find(const std::string& kernel) const;
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  void* handle_ = nullptr;
  const lily_sim::Library* api_ = nullptr;
  std::unordered_map<std::string, const lily_sim::Entry*> entries_;
};

}  // namespace lily::device::sim
