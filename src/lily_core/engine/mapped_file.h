// engine/mapped_file.h -- the bytes of one file in memory, mapped or read; released on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lily {

enum class FileAccess : std::uint8_t {
  map,  // pages come when they are touched, and may be dropped and read again
  read  // all at once into memory of the process, which stays
};

class MappedFile {
 public:
  // The whole file, at the start of a page. Throws Error(checkpoint) if it cannot be opened or read or is not
  // expected_size bytes long, Error(memory_limit) if there is no memory to read it into.
  MappedFile(const std::string& path, std::uint64_t expected_size, FileAccess access = FileAccess::map);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // Bytes [offset, offset + count). Throws Error(checkpoint) if they are not all inside the file.
  [[nodiscard]] const std::byte* bytes(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::string path_;
  std::uint64_t size_ = 0;
  const std::byte* data_ = nullptr;
};

}  // namespace lily
