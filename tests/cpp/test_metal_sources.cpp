// tests/cpp/test_metal_sources.cpp -- kernel sources that are joined into one text a library.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/metal/source_bundle.h"
#include "folder.h"
#include "text.h"

namespace lily::device::metal {
namespace {

TEST_CASE("sources are joined") {
  const Folder folder;
  folder.write("base.h", "#pragma once\n#include <metal_stdlib>\nenum { kBitsIndex = 0, kWideIndex = 7 };\n");
  folder.write("middle.h", "#pragma once\n#include \"base.h\"\nint middle();\n");
  folder.write("one.metal",
               "// a comment: [[kernel]] void ghost(\n#include \"middle.h\"\n#include \"base.h\"\n"
               "constant int kBits [[function_constant(kBitsIndex)]];\n"
               "constant bool kWide [[function_constant(kWideIndex)]];\n"
               "[[kernel, max_total_threads_per_threadgroup(64)]] void plain(device float* x [[buffer(0)]]) {}\n"
               "template <typename T>\n[[kernel]] void of_type(device T* x [[buffer(0)]]) {}\n"
               "template [[host_name(\"of_float\")]] [[kernel]] decltype(of_type<float>) of_type<float>;\n");
  folder.write("two_tensor.metal", "[[kernel]] void other() {}\n");
  const SourceBundle bundle(folder.path());
  REQUIRE_MESSAGE(bundle.libraries().size() == 2, "two libraries");
  const LibrarySource& one = bundle.libraries()[0];
  REQUIRE_MESSAGE((one.name == "one" && !one.uses_tensors() && bundle.libraries()[1].uses_tensors()),
                  "names of libraries");
  REQUIRE_MESSAGE(one.kernels == std::vector<std::string>({"of_float", "plain"}),
                  "kernels by host name, no templates, no comments");
  REQUIRE_MESSAGE((one.constants.at(0) == ConstantType::signed_integer && one.constants.at(7) == ConstantType::boolean),
                  "types of constants");
  REQUIRE_MESSAGE((bundle.library_of("other") == 1 && bundle.library_of("plain") == 0), "libraries of kernels");
  REQUIRE_MESSAGE(one.text.find("kWideIndex = 7") == one.text.rfind("kWideIndex = 7"), "a header comes once");
  REQUIRE_MESSAGE((contains(one.text, "#include <metal_stdlib>") && !contains(one.text, "#pragma once")),
                  "system headers stay");
  // Line 3 of one.metal is the second #include, so what follows the joined header says line 3.
  REQUIRE_MESSAGE(contains(one.text, "int middle();\n#line 3 \"one.metal\"\n"), "lines go on after a header");
  folder.write("base.h", "#pragma once\nenum { kBitsIndex = 0, kWideIndex = 8 };\n");
  REQUIRE_MESSAGE(SourceBundle(folder.path()).fingerprint() != bundle.fingerprint(),
                  "other sources, another fingerprint");
}

TEST_CASE("wrong sources are refused") {
  const Folder folder;
  REQUIRE_MESSAGE(
      contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), folder.path().string()),
      "an empty folder is named");
  folder.write("a.metal", "#include \"absent.h\"\n");
  REQUIRE_MESSAGE(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "absent.h"),
                  "missing header");
  folder.write("b.h", "#pragma once\n");
  folder.write("a.metal", "#ifdef X\n#include \"b.h\"\n#endif\n#include \"b.h\"\n");
  REQUIRE_MESSAGE(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "b.h"),
                  "conditions");
  folder.write("a.metal", "[[kernel]] void same() {}\n");
  folder.write("b.metal", "[[kernel]] void same() {}\n");
  REQUIRE_MESSAGE(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "same"),
                  "equal names");
  folder.write("b.metal", "constant int k [[function_constant(kNowhere)]];\n[[kernel]] void b() {}\n");
  REQUIRE_MESSAGE(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "kNowhere"),
                  "constants");
}

// The sources that ship: what the engine launches is found, and where it belongs.
TEST_CASE("shipped sources") {
  const fs::path metal = fs::path(__FILE__).parent_path() / ".." / ".." / "metal";
  const SourceBundle bundle(metal);
  for (const char* kernel : {"embed_rows", "gemv_segments", "gemm_affine_m64", "gdn_step", "attention_prefill"}) {
    REQUIRE_MESSAGE(!bundle.libraries()[bundle.library_of(kernel)].uses_tensors(), std::string(kernel),
                    " is a plain kernel");
  }
  for (const char* kernel : {"gemm_affine_tensor_m32", "gemm_affine_tensor_m64"}) {
    const LibrarySource& library = bundle.libraries()[bundle.library_of(kernel)];
    REQUIRE_MESSAGE((library.uses_tensors() && library.constants.size() == 4), std::string(kernel),
                    " is in a library of its own");
  }
  for (const LibrarySource& library : bundle.libraries()) {
    REQUIRE_MESSAGE(!library.kernels.empty(), library.name, " has kernels");
    REQUIRE_MESSAGE(!contains(library.text, "#include \""), library.name, " needs no file");
  }
}

}  // namespace
}  // namespace lily::device::metal
