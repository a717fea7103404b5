// device/own_file.cpp -- looks at a file's kind before it is opened.
#include "device/own_file.h"

#include <fstream>

namespace lily::device {

namespace fs = std::filesystem;

std::optional<std::string> read_own_file(const fs::path& path, std::uintmax_t most) {
  std::error_code failed;
  if (fs::symlink_status(path, failed).type() != fs::file_type::regular) return std::nullopt;
  const std::uintmax_t size = fs::file_size(path, failed);
  if (failed || size > most) return std::nullopt;
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) return std::nullopt;
  return text;
}

bool may_replace(const fs::path& path, std::string_view head) {
  std::error_code failed;
  const fs::file_type type = fs::symlink_status(path, failed).type();
  if (type == fs::file_type::not_found) return true;
  if (type != fs::file_type::regular) return false;
  std::string begin(head.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return static_cast<std::size_t>(file.gcount()) == head.size() && begin == head;
}

}  // namespace lily::device
