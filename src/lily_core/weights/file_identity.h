// weights/file_identity.h -- what identifies a file and its content.
#pragma once

#include <cstdint>
#include <string>

struct stat;

namespace lily {

struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;        // bytes
  std::int64_t modified_ns = 0;  // of the content, since the epoch
  std::int64_t changed_ns = 0;   // of the content or of attributes; no program can set it back
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// What can change without a change of the content, and then moves changed_ns.
struct FileAttributes {
  std::uint64_t links = 0;
  std::uint64_t mode = 0;
  std::uint64_t owner = 0;
  std::uint64_t group = 0;
  friend bool operator==(const FileAttributes&, const FileAttributes&) = default;
};

[[nodiscard]] FileIdentity identity_of(const struct stat& status);
[[nodiscard]] FileAttributes attributes_of(const struct stat& status);

// How the file `now` differs from `before`, as part of a sentence; empty: not at all.
[[nodiscard]] std::string difference(const FileIdentity& before, const FileIdentity& now);

}  // namespace lily
