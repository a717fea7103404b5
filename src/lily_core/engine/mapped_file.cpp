// engine/mapped_file.cpp -- POSIX memory mapping of checkpoint files.
#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace

MappedFile::MappedFile(const std::string& path, std::uint64_t expected_size) : path_(path), size_(expected_size) {
  const FileDescriptor file(path);
  if (file.value() < 0) fail(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status{};
  if (::fstat(file.value(), &status) != 0) fail(path, std::string("cannot be examined: ") + std::strerror(errno));
  if (static_cast<std::uint64_t>(status.st_size) != expected_size) {
    fail(path, "has " + std::to_string(status.st_size) + " bytes where its header was read with " +
                   std::to_string(expected_size) + "; it changed while loading, load it again");
  }
  if (size_ == 0) return;
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
