// device/own_file.h -- files that a cache of ours may read and replace: nothing that it did not write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace lily::device {

// The contents of a regular file; nothing for whatever else has that name (a pipe would be waited for, a device has no
// end) and for files of more than `most` bytes.
[[nodiscard]] std::optional<std::string> read_own_file(const std::filesystem::path& path, std::uintmax_t most);

// Whether a file may be put at `path`: nothing is there, or a regular file of ours, which begins with `head`.
[[nodiscard]] bool may_replace(const std::filesystem::path& path, std::string_view head);

}  // namespace lily::device
