// device/own_file.h -- files that a Lily cache may read and replace: only those that it wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lily::device {

// The contents of a regular file. Nothing for anything else with that name (a pipe would block, a device has no end)
// and for files of more than `most` bytes.
[[nodiscard]] std::optional<std::string> read_own_file(const std::filesystem::path& path, std::uintmax_t most);

// Whether a file may be put at `path`: nothing is there, or a regular file of ours, which begins with `head`.
[[nodiscard]] bool may_replace(const std::filesystem::path& path, std::string_view head);

}  // namespace lily::device
