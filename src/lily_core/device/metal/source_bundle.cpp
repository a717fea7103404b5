// device/metal/source_bundle.cpp -- joins headers and sources, and extracts what the host must know.
#include "device/metal/source_bundle.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <utility>

#include "base/error.h"

namespace lily::device::metal {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::backend, "Metal sources: " + what); }

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(path.string() + " cannot be read; install Lily again");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Puts headers in the place of their #include, each once, as they all say #pragma once. One that stands inside a
// condition must not be needed outside of it.
class Joiner {
 public:
  explicit Joiner(fs::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& name, bool inside_condition = false) {
    const auto [seen, is_new] = seen_.emplace(name, inside_condition);
    if (!is_new && seen->second && !inside_condition) {
      refuse(name + " is included inside a condition first, and outside of one later");
    }
    if (!is_new) return;
    static const std::regex quoted_include(R"re(\s*#\s*include\s*"([^"]+)".*)re");
    static const std::regex opens(R"re(\s*#\s*if(def|ndef)?\b.*)re");
    static const std::regex closes(R"re(\s*#\s*endif\b.*)re");
    std::istringstream lines(read_text(folder_ / name));
    begin_file(name, 1);
    std::size_t number = 0;
    int conditions = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      std::smatch match;
      if (std::regex_match(line, opens)) ++conditions;
      if (std::regex_match(line, closes)) --conditions;
      if (line.starts_with("#pragma once")) {
        text_ << "\n";
      } else if (std::regex_match(line, match, quoted_include)) {
        add(match[1].str(), inside_condition || conditions > 0);
        begin_file(name, number + 1);
      } else {
        text_ << line << "\n";
      }
    }
  }

  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  void begin_file(const std::string& name, std::size_t line) { text_ << "#line " << line << " \"" << name << "\"\n"; }

  fs::path folder_;
  std::map<std::string, bool> seen_;  // whether it is inside a condition
  std::ostringstream text_;
};

std::string without_comments(const std::string& text) {
  static const std::regex comment(R"re(//[^\n]*)re");
  return std::regex_replace(text, comment, "");
}

template <class Visit>
void for_each_match(const std::string& text, const std::regex& pattern, Visit&& visit) {
  for (std::sregex_iterator at(text.begin(), text.end(), pattern), end; at != end; ++at) visit(*at);
}

// Instantiations carry a host name; a kernel that is no template goes by its own.
std::vector<std::string> kernels_of(const std::string& text) {
  static const std::regex host_name(R"re(host_name\s*\(\s*"([^"]+)"\s*\))re");
  static const std::regex plain(R"re((>\s*)?\[\[\s*kernel\b[^\]]*\]\]\s*void\s+(\w+)\s*\()re");
  std::vector<std::string> kernels;
  for_each_match(text, host_name, [&](const std::smatch& match) { kernels.push_back(match[1].str()); });
  for_each_match(text, plain, [&](const std::smatch& match) {
    if (!match[1].matched) kernels.push_back(match[2].str());
  });
  return kernels;
}

// Function constants are declared with the name of an enumerator, which a header gives a number.
std::map<std::uint32_t, ConstantType> constants_of(const std::string& text, const std::string& file) {
  static const std::regex enumerator(R"re(\b(k\w+Index)\s*=\s*(\d+))re");
  static const std::regex declaration(
      R"re(constant\s+(bool|int|uint)\s+\w+\s*\[\[\s*function_constant\s*\(\s*(\w+)\s*\)\s*\]\])re");
  std::map<std::string, std::uint32_t> numbers;
  for_each_match(text, enumerator, [&](const std::smatch& match) {
    numbers[match[1].str()] = static_cast<std::uint32_t>(std::stoul(match[2].str()));
  });
  std::map<std::uint32_t, ConstantType> constants;
  for_each_match(text, declaration, [&](const std::smatch& match) {
    const std::string index = match[2].str();
    const bool is_number = index.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number && !numbers.contains(index)) refuse(file + ": the function constant index " + index + " is unknown");
    const std::uint32_t number = is_number ? static_cast<std::uint32_t>(std::stoul(index)) : numbers.at(index);
    constants[number] = match[1].str() == "bool"  ? ConstantType::boolean
                        : match[1].str() == "int" ? ConstantType::signed_integer
                                                  : ConstantType::unsigned_integer;
  });
  return constants;
}

// FNV-1a.
std::string hash_of(const std::vector<LibrarySource>& libraries) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const LibrarySource& library : libraries) {
    for (const char character : library.text) {
      hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001b3U;
    }
  }
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

}  // namespace

SourceBundle::SourceBundle(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".metal") files.push_back(entry.path());
  }
  if (files.empty())
    refuse("there are none in " + folder.string() + "; install Lily again, or unset LILY_METAL_SOURCES if it is set");
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    Joiner joiner(folder);
    joiner.add(file.filename().string());
    const std::string code = without_comments(joiner.text());
    libraries_.push_back({.name = file.stem().string(),
                          .text = joiner.text(),
                          .kernels = kernels_of(code),
                          .constants = constants_of(code, file.filename().string())});
    for (const std::string& kernel : libraries_.back().kernels) {
      if (!library_of_.emplace(kernel, libraries_.size() - 1).second) refuse("two kernels have the name " + kernel);
    }
  }
  fingerprint_ = hash_of(libraries_);
}

std::size_t SourceBundle::library_of(const std::string& kernel) const {
  const auto found = library_of_.find(kernel);
  if (found == library_of_.end()) refuse("there is no kernel '" + kernel + "'");
  return found->second;
}

fs::path packaged_sources() {
  if (const char* chosen = std::getenv("LILY_METAL_SOURCES"); chosen != nullptr && *chosen != '\0') return chosen;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&packaged_sources), &info) == 0 || info.dli_fname == nullptr) {
    refuse("the place of Lily's native module is unknown; set LILY_METAL_SOURCES to the folder of the .metal files");
  }
  const fs::path module = info.dli_fname;
  std::error_code ignored;
  const std::array<fs::path, 2> folders = {module.parent_path(), fs::canonical(module, ignored).parent_path()};
  for (const fs::path& folder : folders) {
    if (fs::is_directory(folder / "metal", ignored)) return folder / "metal";
  }
  refuse("the folder metal is missing beside " + module.string() +
         "; install Lily again, or set LILY_METAL_SOURCES to the folder of the .metal files");
}

}  // namespace lily::device::metal
