// weights/file_identity.cpp -- reads a file's identity from stat, and says how two identities differ.
#include "weights/file_identity.h"

#include <sys/stat.h>

namespace lily {
namespace {

std::int64_t nanoseconds(const struct timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

// The times have one name on macOS and another everywhere else.
template <class Status>
std::int64_t modified_ns(const Status& status) {
  if constexpr (requires { status.st_mtimespec; }) {
    return nanoseconds(status.st_mtimespec);
  } else {
    return nanoseconds(status.st_mtim);
  }
}

template <class Status>
std::int64_t changed_ns(const Status& status) {
  if constexpr (requires { status.st_ctimespec; }) {
    return nanoseconds(status.st_ctimespec);
  } else {
    return nanoseconds(status.st_ctim);
  }
}

}  // namespace

FileIdentity identity_of(const struct stat& status) {
  return {.device = static_cast<std::uint64_t>(status.st_dev),
          .inode = static_cast<std::uint64_t>(status.st_ino),
          .size = static_cast<std::uint64_t>(status.st_size),
          .modified_ns = modified_ns(status),
          .changed_ns = changed_ns(status)};
}

FileAttributes attributes_of(const struct stat& status) {
  return {.links = static_cast<std::uint64_t>(status.st_nlink),
          .mode = static_cast<std::uint64_t>(status.st_mode),
          .owner = static_cast<std::uint64_t>(status.st_uid),
          .group = static_cast<std::uint64_t>(status.st_gid)};
}

std::string difference(const FileIdentity& before, const FileIdentity& now) {
  if (now.device != before.device || now.inode != before.inode) return "was replaced by another file";
  if (now.size != before.size) {
    return std::string(now.size < before.size ? "was cut" : "grew") + " from " + std::to_string(before.size) + " to " +
           std::to_string(now.size) + " bytes";
  }
  if (now.modified_ns != before.modified_ns) return "was written to";
  if (now.changed_ns != before.changed_ns) return "was changed and its time of modification set back";
  return "";
}

}  // namespace lily
