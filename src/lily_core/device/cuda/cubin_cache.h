// device/cuda/cubin_cache.h -- compiled kernels on disk, so that a second start compiles nothing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lily::device::cuda {

// One file a kernel, named after a hash of everything that it depends on. Failing to read or write is not an error: the
// kernel is compiled again.
class CubinCache {
 public:
  // `folder` empty: $XDG_CACHE_HOME/lily/cuda, or ~/.cache/lily/cuda.
  explicit CubinCache(std::filesystem::path folder);

  [[nodiscard]] std::optional<std::string> load(const std::string& key) const;
  void store(const std::string& key, const std::string& cubin) const;

 private:
  [[nodiscard]] std::filesystem::path file_of(const std::string& key) const;

  std::filesystem::path folder_;
};

}  // namespace lily::device::cuda
