// weights/mapped_file.h -- the bytes of one file in memory, mapped or read; released on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "weights/file_identity.h"

namespace lily {

enum class FileAccess : std::uint8_t {
  map,  // pages come when they are touched, and may be dropped and read again
  read  // all at once into memory of the process, which stays
};

// An open file, closed on destruction; a negative value is none.
class FileDescriptor {
 public:
  explicit FileDescriptor(int value) : value_(value) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  [[nodiscard]] int value() const { return value_; }
  void close();

 private:
  int value_;
};

class MappedFile {
 public:
  // The whole file, at the start of a page. Throws Error(checkpoint) if it cannot be opened or read, is not the one
  // that `expected` describes or changes while it is read, Error(memory_limit) if there is no memory to read it into.
  MappedFile(const std::string& path, const FileIdentity& expected, FileAccess access = FileAccess::map);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return identity_.size; }
  // Bytes [offset, offset + count). Throws Error(checkpoint) if they are not all inside the file.
  [[nodiscard]] const std::byte* bytes(std::uint64_t offset, std::uint64_t count) const;

  // Throws Error(checkpoint) if the file's content has changed since it was mapped. A mapped file shows such changes,
  // and ends the process where it became shorter. Removing, renaming or linking it does not matter.
  void require_unchanged() const;
  // The file's further fate does not matter: its bytes are elsewhere.
  void stop_watching() { descriptor_.close(); }

 private:
  std::string path_;
  FileDescriptor descriptor_;  // open while the file's content matters
  FileIdentity identity_;
  FileAttributes attributes_;
  const std::byte* data_ = nullptr;
};

}  // namespace lily
