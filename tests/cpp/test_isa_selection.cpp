// tests/cpp/test_isa_selection.cpp -- which instruction set is chosen, and how others are refused.
//
// With names in LILY_TEST_ISAS those instruction sets, and no others, must run here, best first.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "cpu/dispatch.h"

namespace lily {
namespace {

// Whether select_kernels(name) throws and names what can run here.
bool is_refused(const std::string& name) {
  std::string available;
  for (const std::string& each : cpu::available_isas()) available += (available.empty() ? "" : ", ") + each;
  try {
    static_cast<void>(cpu::select_kernels(name));
  } catch (const Error& error) {
    return error.kind() == ErrorKind::config &&
           std::string(error.what()).find("choose one of: " + available) != std::string::npos;
  }
  return false;
}

TEST_CASE("selection") {
  const std::vector<std::string> names = cpu::available_isas();
  if (const char* wanted = std::getenv("LILY_TEST_ISAS")) {
    std::istringstream words(wanted);
    const std::vector<std::string> isas(std::istream_iterator<std::string>(words), {});
    CHECK_MESSAGE(names == isas, "the instruction sets named are those that run here");
  }
  CHECK_MESSAGE((!names.empty() && names.back() == "portable"), "portable is the last instruction set");
  CHECK_MESSAGE(cpu::select_kernels(names.back()).name == names.back(), "select by name");
  setenv("LILY_CPU_ISA", "portable", 1);
  CHECK_MESSAGE(std::string(cpu::select_kernels("").name) == "portable", "LILY_CPU_ISA chooses");
  CHECK_MESSAGE(std::string(cpu::select_kernels(names.front()).name) == names.front(), "a name wins over LILY_CPU_ISA");
  unsetenv("LILY_CPU_ISA");
  CHECK_MESSAGE(std::string(cpu::select_kernels("").name) == names.front(), "the best is the default");
  for (const std::string name : {"z80", "amx", "avx512", "avx2", "i8mm", "neon"}) {
    if (std::ranges::find(names, name) != names.end()) continue;
    setenv("LILY_CPU_ISA", name.c_str(), 1);
    CHECK_MESSAGE((is_refused(name) && is_refused("")), name, " cannot run here and is refused with what can");
    unsetenv("LILY_CPU_ISA");
  }
}

}  // namespace
}  // namespace lily
