// device/metal/source_bundle.h -- the packaged Metal sources as texts that compile by themselves, one for each library.
//
// Metal's run-time compiler takes one text and finds no files, so each .metal file gets its headers in place; #line
// keeps the file and the line of every message.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace lily::device::metal {

enum class ConstantType : std::uint8_t { boolean, signed_integer, unsigned_integer };

struct LibrarySource {
  std::string name;  // the .metal file's, without its ending
  std::string text;
  std::vector<std::string> kernels;                 // host names
  std::map<std::uint32_t, ConstantType> constants;  // by function constant index

  // Compiled apart from all others, in a newer language version.
  [[nodiscard]] bool uses_tensors() const { return name.ends_with("_tensor"); }
};

class SourceBundle {
 public:
  // Reads every .metal file of a folder. Throws Error(backend) naming a file that is missing or wrong.
  explicit SourceBundle(const std::filesystem::path& folder);

  [[nodiscard]] const std::vector<LibrarySource>& libraries() const { return libraries_; }
  // The index of the library that has a kernel. Throws Error(backend) when none has.
  [[nodiscard]] std::size_t library_of(const std::string& kernel) const;
  [[nodiscard]] bool has_kernel(const std::string& kernel) const { return library_of_.contains(kernel); }
  // Of all texts: other sources have another one.
  [[nodiscard]] const std::string& fingerprint() const { return fingerprint_; }

 private:
  std::vector<LibrarySource> libraries_;
  std::map<std::string, std::size_t> library_of_;
  std::string fingerprint_;
};

// The folder `metal` beside the native module, or LILY_METAL_SOURCES of the environment. Throws Error(backend).
[[nodiscard]] std::filesystem::path packaged_sources();

}  // namespace lily::device::metal
