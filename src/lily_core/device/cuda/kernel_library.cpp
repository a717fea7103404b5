// device/cuda/kernel_library.cpp -- reads the folder of translated kernels.
#include "device/cuda/kernel_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace lily::device::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kFunctionConstants = 32;
constexpr std::size_t kFields = 7;
constexpr const char* kFolder = "_cuda_kernels";

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorKind::backend, "the cuda device: " + reason); }

// Beside the file that this code was loaded from, symbolic links followed or not.
fs::path find_shipped() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&find_shipped), &info) == 0 || info.dli_fname == nullptr) {
    refuse("the place of Lily's native module is unknown");
  }
  const fs::path module = info.dli_fname;
  std::error_code ignored;
  for (const fs::path& folder : {module.parent_path(), fs::canonical(module, ignored).parent_path()}) {
    if (fs::exists(folder / kFolder / "index.txt", ignored)) return folder / kFolder;
  }
  refuse(std::string("this build of Lily has no kernels for it (") + kFolder + " beside the native module)");
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The number at the front of `text`, which is taken away.
std::uint32_t take_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc()) refuse("a number was expected in its index of kernels, not '" + std::string(text) + "'");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

KernelSlot parse_slot(std::string_view text) {
  KernelSlot slot;
  slot.index = take_number(text);
  slot.written = text.starts_with('w');
  if (text.starts_with('b')) {
    text.remove_prefix(1);
    slot.bytes = take_number(text);
  }
  return slot;
}

// See tools/msl/cuda_backend.py, index_lines.
KernelEntry parse_entry(std::string_view line) {
  std::vector<std::string_view> fields = split(line, '\t');
  if (fields.size() != kFields) refuse("a damaged line in its index of kernels: " + std::string(line));
  KernelEntry entry;
  entry.name = fields[0];
  entry.file = fields[1];
  entry.number = take_number(fields[2]);
  entry.max_threads = take_number(fields[3]);
  entry.takes_threadgroup_memory = take_number(fields[4]) != 0;
  for (const std::string_view slot : split(fields[5], ' ')) {
    if (!slot.empty()) entry.slots.push_back(parse_slot(slot));
  }
  for (std::string_view constant : split(fields[6], ' ')) {
    if (constant.empty()) continue;
    const std::uint32_t index = take_number(constant);
    entry.constants[index] = constant.substr(1);
  }
  return entry;
}

}  // namespace

KernelLibrary::KernelLibrary(fs::path folder) : folder_(std::move(folder)) {
  if (folder_.empty()) folder_ = find_shipped();
  header_ = read_file(folder_ / "lily_msl.h");
  read_index();
}

void KernelLibrary::read_index() {
  const std::string index = read_file(folder_ / "index.txt");
  for (const std::string_view line : split(index, '\n')) {
    if (line.empty()) continue;
    KernelEntry entry = parse_entry(line);
    if (!sources_.contains(entry.file)) sources_[entry.file] = read_file(folder_ / (entry.file + ".cu"));
    std::string name = entry.name;
    entries_.emplace(std::move(name), std::move(entry));
  }
}

const KernelEntry& KernelLibrary::find(const std::string& kernel) const {
  const auto found = entries_.find(kernel);
  if (found == entries_.end()) refuse("there is no kernel '" + kernel + "' in " + folder_.string());
  return found->second;
}

std::vector<std::string> KernelLibrary::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string KernelLibrary::source(const KernelEntry& entry, std::span<const FunctionConstant> constants) const {
  std::array<std::int32_t, kFunctionConstants> values = {};
  std::uint32_t given = 0;
  for (const FunctionConstant& constant : constants) {
    if (constant.index >= kFunctionConstants) {
      refuse(entry.name + ": function constant index " + std::to_string(constant.index) + " is out of range");
    }
    values[constant.index] = constant.value;
    given |= 1U << constant.index;
  }
  std::string text;
  for (std::uint32_t i = 0; i < kFunctionConstants; ++i) {
    // Constants that the kernel does not use stay zero, so that they do not change the program.
    const auto used = entry.constants.find(i);
    if (used != entry.constants.end() && (given >> i & 1U) == 0) {
      refuse(entry.name + ": function constant " + std::to_string(i) + " (" + used->second + ") has no value");
    }
    const std::int32_t value = used != entry.constants.end() ? values[i] : 0;
    text += "#define LILY_CONSTANT_" + std::to_string(i) + " (" + std::to_string(value) + ")\n";
  }
  text += "#define LILY_ENTRY " + std::to_string(entry.number) + "\n#line 1 \"" + entry.file + ".cu\"\n";
  return text + sources_.at(entry.file);
}

}  // namespace lily::device::cuda
