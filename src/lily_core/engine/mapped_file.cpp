// engine/mapped_file.cpp -- POSIX memory mapping and reading of checkpoint files.
#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/error.h"

namespace lily {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path) : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_;
};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::checkpoint, path + ": " + what);
}

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 28;  // a call; systems cut off larger ones

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
      const std::string reason = count < 0 ? std::strerror(errno) : "it became shorter";
      ::munmap(address, size);
      fail(path, "cannot be read: " + reason);
    }
    done += static_cast<std::uint64_t>(count);
  }
  ::mprotect(address, size, PROT_READ);
  return bytes;
}

}  // namespace

MappedFile::MappedFile(const std::string& path, std::uint64_t expected_size, FileAccess access)
    : path_(path), size_(expected_size) {
  const FileDescriptor file(path);
  if (file.value() < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status{};
  if (::fstat(file.value(), &status) != 0) fail(path, std::string("cannot be examined: ") + std::strerror(errno));
  if (static_cast<std::uint64_t>(status.st_size) != expected_size) {
    fail(path, "has " + std::to_string(status.st_size) + " bytes where its header was read with " +
                   std::to_string(expected_size) + "; it changed while loading, load it again");
  }
  if (size_ == 0) return;
  if (access == FileAccess::read) {
    data_ = read_file(file, path, size_);
    return;
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value(), 0);
  if (address == MAP_FAILED) fail(path, std::string("cannot be memory-mapped: ") + std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), size_(std::exchange(other.size_, 0)), data_(std::exchange(other.data_, nullptr)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

const std::byte* MappedFile::bytes(std::uint64_t offset, std::uint64_t count) const {
  if (offset > size_ || count > size_ - offset) {
    fail(path_, "a tensor's bytes [" + std::to_string(offset) + ", +" + std::to_string(count) +
                    ") lie outside the file of " + std::to_string(size_) + " bytes");
  }
  return data_ + offset;
}

}  // namespace lily
