// engine/mapped_file.h -- a read-only memory map of one file, unmapped on destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace lily {

class MappedFile {
 public:
  // Maps the whole file. Throws Error(checkpoint) if it cannot be opened or is not expected_size bytes long.
  MappedFile(const std::string& path, std::uint64_t expected_size);
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
