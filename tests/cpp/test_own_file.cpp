// tests/cpp/test_own_file.cpp -- caches on disk read and replace nothing that they did not write.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "device/own_file.h"
#include "named_tests.h"

namespace lily {
namespace {

namespace fs = std::filesystem;
using device::may_replace;
using device::read_own_file;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "lily-own-file-XXXXXX").string();
    expect(::mkdtemp(pattern.data()) != nullptr, "a folder for the test");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void test_regular_files() {
  const Folder folder;
  const fs::path ours = folder.write("ours", "lily 1\nkernel");
  expect(read_own_file(ours, 100) == "lily 1\nkernel", "a file is read");
  expect(!read_own_file(ours, 12), "but not a larger one than may be");
  expect(!read_own_file(folder.path() / "absent", 100), "nor one that is not there");
  expect(may_replace(ours, "lily 1\n"), "ours is replaced");
  expect(may_replace(folder.path() / "absent", "lily 1\n"), "and so is nothing");
  for (const char* text : {"", "lil", "mine", "lily 2\nkernel"}) {
    expect(!may_replace(folder.write("foreign", text), "lily 1\n"), std::string("foreign: ") + text);
  }
}

void test_what_is_no_regular_file() {
  const Folder folder;
  const fs::path ours = folder.write("ours", "lily 1\n");
  fs::create_directory(folder.path() / "folder");
  fs::create_symlink(ours, folder.path() / "link");
  fs::create_symlink("nowhere", folder.path() / "dangling");
  expect(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0, "a pipe for the test");
  for (const char* name : {"folder", "link", "dangling", "pipe"}) {
    expect(!read_own_file(folder.path() / name, 100), std::string("read: ") + name);
    expect(!may_replace(folder.path() / name, "lily 1\n"), std::string("replaced: ") + name);
  }
}

}  // namespace
}  // namespace lily

int main() {
  return lily::run_tests(
      {{"regular files", lily::test_regular_files}, {"what is no regular file", lily::test_what_is_no_regular_file}});
}
