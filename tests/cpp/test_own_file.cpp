// tests/cpp/test_own_file.cpp -- caches on disk read and replace nothing that they did not write.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "device/own_file.h"
#include "folder.h"

namespace lily {
namespace {

using device::may_replace;
using device::read_own_file;

TEST_CASE("regular files") {
  const Folder folder;
  const fs::path ours = folder.write("ours", "lily 1\nkernel");
  REQUIRE_MESSAGE(read_own_file(ours, 100) == "lily 1\nkernel", "a file is read");
  REQUIRE_MESSAGE((read_own_file(ours, 13).has_value() && !read_own_file(ours, 12)), "but no larger one than may be");
  REQUIRE_MESSAGE(!read_own_file(folder.path() / "absent", 100), "nor one that is not there");
  REQUIRE_MESSAGE(may_replace(ours, "lily 1\n"), "ours is replaced");
  REQUIRE_MESSAGE(may_replace(folder.path() / "absent", "lily 1\n"), "and so is nothing");
  for (const char* text : {"", "lil", "mine", "lily 2\nkernel"}) {
    REQUIRE_MESSAGE(!may_replace(folder.write("foreign", text), "lily 1\n"), "foreign: ", text);
  }
}

TEST_CASE("what is no regular file") {
  const Folder folder;
  const fs::path ours = folder.write("ours", "lily 1\n");
  fs::create_directory(folder.path() / "folder");
  fs::create_symlink(ours, folder.path() / "link");
  fs::create_symlink("nowhere", folder.path() / "dangling");
  REQUIRE_MESSAGE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0, "a pipe for the test");
  for (const char* name : {"folder", "link", "dangling", "pipe"}) {
    REQUIRE_MESSAGE(!read_own_file(folder.path() / name, 100), "read: ", name);
    REQUIRE_MESSAGE(!may_replace(folder.path() / name, "lily 1\n"), "replaced: ", name);
  }
}

}  // namespace
}  // namespace lily
