// weights/mapped_file.cpp -- POSIX memory mapping and reading of checkpoint files.
#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "weights/mapped_file_faults.h"

namespace lily {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  std::string name = path;
  for (char& c : name) c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  throw Error(ErrorKind::checkpoint, name + ": " + what);
}

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 28;  // a call; systems cut off larger ones

struct stat status_of(const FileDescriptor& file, const std::string& path) {
  struct stat status{};
  if (::fstat(file.value(), &status) != 0) fail(path, std::string("cannot be examined: ") + std::strerror(errno));
  return status;
}

void require_same(const std::string& path, const FileIdentity& expected, const FileIdentity& found) {
  const std::string change = difference(expected, found);
  if (!change.empty()) fail(path, change + " while the model was loaded; load it again");
}

// The file's bytes in fresh pages.
const std::byte* read_file(const FileDescriptor& file, const std::string& path, std::uint64_t size) {
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorKind::memory_limit, path + ": no memory to read its " + std::to_string(size) +
                                             " bytes into; load the model with weights=\"mmap\"");
  }
  auto* bytes = static_cast<std::byte*>(address);
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t count =
        ::pread(file.value(), bytes + done, std::min(size - done, kReadBytes), static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const std::string reason = count < 0 ? std::strerror(errno) : "it was truncated";
      ::munmap(address, size);
      fail(path, "cannot be read: " + reason + "; load the model again from a complete file");
    }
    done += static_cast<std::uint64_t>(count);
  }
  ::mprotect(address, size, PROT_READ);
  return bytes;
}

}  // namespace

FileDescriptor::~FileDescriptor() { close(); }

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}

void FileDescriptor::close() {
  if (value_ >= 0) ::close(std::exchange(value_, -1));
}

// Not blocking: a pipe that has taken the file's place must not make this wait for a writer.
MappedFile::MappedFile(const std::string& path, const FileIdentity& expected, FileAccess access)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  if (descriptor_.value() < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  const struct stat status = status_of(descriptor_, path);
  if (!S_ISREG(status.st_mode)) fail(path, "is no longer a regular file; load the model again from a complete file");
  identity_ = identity_of(status);
  attributes_ = attributes_of(status);
  require_same(path, expected, identity_);
  const std::uint64_t size = identity_.size;
  if (size == 0) return;
  if (access == FileAccess::read) {
    data_ = read_file(descriptor_, path, size);
    try {
      require_unchanged();
    } catch (...) {
      ::munmap(const_cast<std::byte*>(data_), size);
      throw;
    }
    stop_watching();
    return;
  }
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_.value(), 0);
  if (address == MAP_FAILED) fail(path, std::string("cannot be memory-mapped: ") + std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
  note_mapping(data_, size, path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::move(other.descriptor_)),
      identity_(other.identity_),
      attributes_(other.attributes_),
      data_(std::exchange(other.data_, nullptr)) {}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), identity_.size);
}

const std::byte* MappedFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size() || count > size() - offset) {
    fail(path_, "a tensor's bytes [" + std::to_string(offset) + ", +" + std::to_string(count) +
                    ") lie outside the file of " + std::to_string(size()) + " bytes");
  }
  return data_ + offset;
}

void MappedFile::require_unchanged() const {
  if (descriptor_.value() < 0) return;
  const struct stat status = status_of(descriptor_, path_);
  FileIdentity now = identity_of(status);
  if (now == identity_) return;
  if (now.changed_ns != identity_.changed_ns) {
    // Different attributes, or a removed name, explain a change time that moved alone.
    struct stat named{};
    const bool renamed = ::stat(path_.c_str(), &named) != 0 || named.st_ino != status.st_ino;
    if (renamed || attributes_of(status) != attributes_) now.changed_ns = identity_.changed_ns;
  }
  const std::string change = difference(identity_, now);
  if (!change.empty()) {
    fail(path_, change +
                    " while the model used it, so its weights cannot be trusted; close the model and load "
                    "it again, or load it with weights=\"read\"");
  }
}

}  // namespace lily
