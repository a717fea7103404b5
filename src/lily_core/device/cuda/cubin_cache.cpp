// device/cuda/cubin_cache.cpp -- files that begin with a check of their contents.
#include "device/cuda/cubin_cache.h"

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "device/own_file.h"

namespace lily::device::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "lily cubin 1\n";
constexpr std::uintmax_t kMostBytes = 256U << 20;

std::uint64_t fnv1a(std::string_view text, std::uint64_t hash) {
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
  return hash;
}

// 128 bits in hexadecimal.
std::string digest(std::string_view text) {
  std::array<char, 33> digits = {};
  std::snprintf(digits.data(), digits.size(), "%016llx%016llx",
                static_cast<unsigned long long>(fnv1a(text, 0xcbf29ce484222325ULL)),
                static_cast<unsigned long long>(fnv1a(text, 0x9ae16a3b2f90404fULL)));
  return digits.data();
}

fs::path default_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
    return fs::path(cache) / "lily" / "cuda";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {
    return fs::path(home) / ".cache" / "lily" / "cuda";
  }
  return {};
}

}  // namespace

CubinCache::CubinCache(fs::path folder) : folder_(folder.empty() ? default_folder() : std::move(folder)) {}

fs::path CubinCache::file_of(const std::string& key) const { return folder_ / (digest(key) + ".cubin"); }

std::optional<std::string> CubinCache::load(const std::string& key) const {
  if (folder_.empty()) return std::nullopt;
  const std::optional<std::string> text = read_own_file(file_of(key), kMostBytes);
  if (!text) return std::nullopt;
  std::string_view rest = *text;
  if (!rest.starts_with(kMagic) || rest.size() < kMagic.size() + 33) return std::nullopt;
  rest.remove_prefix(kMagic.size());
  const std::string_view check = rest.substr(0, 32);
  rest.remove_prefix(33);
  if (check != digest(rest)) return std::nullopt;
  return std::string(rest);
}

void CubinCache::store(const std::string& key, const std::string& cubin) const {
  if (folder_.empty()) return;
  std::error_code failed;
  fs::create_directories(folder_, failed);
  if (failed) return;
  const fs::path path = file_of(key);
  if (!may_replace(path, kMagic)) return;
  const std::size_t thread = std::hash<std::thread::id>{}(std::this_thread::get_id());
  fs::path temporary = path;
  for (const std::string& part : {std::to_string(getpid()), std::to_string(thread)}) (temporary += '.') += part;
  {
    std::ofstream file(temporary, std::ios::binary);
    file << kMagic << digest(cubin) << '\n' << cubin;
    if (!file.flush()) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) fs::rename(temporary, path, failed);
  if (failed) fs::remove(temporary, failed);
}

}  // namespace lily::device::cuda
