// cpu/dispatch.cpp -- detects the processor's instruction sets and builds the kernel tables.
#include "cpu/dispatch.h"

#include <cstdlib>

#include "base/error.h"
#include "cpu/amx_permission.h"
#include "cpu/isa/isa.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {
namespace {

using Fill = void (*)(KernelTable&);

struct Isa {
  const char* name;
  bool (*runs_here)();
  Fill fill_matmul;
  Fill fill_float;
};

bool always() { return true; }

#if defined(__x86_64__)

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_amx() { return has_avx512() && request_amx(); }

constexpr Isa kIsas[] = {
    {"amx", has_amx, fill_matmul_amx, fill_float_avx512},
    {"avx512", has_avx512, fill_matmul_avx512, fill_float_avx512},
    {"avx2", has_avx2, fill_matmul_avx2, fill_float_avx2},
    {"portable", always, fill_matmul_portable, fill_float_portable},
};

#elif defined(__aarch64__)

#if defined(__APPLE__)
bool has_feature(const char* name) {
  int present = 0;
  std::size_t size = sizeof present;
  return sysctlbyname(name, &present, &size, nullptr, 0) == 0 && present != 0;
}
#endif

// The 8-bit dot product instructions; every processor since 2018 or so.
bool has_dot_product() {
#if defined(__linux__)
  constexpr unsigned long hwcap_asimddp = 1UL << 20U;
  return (getauxval(AT_HWCAP) & hwcap_asimddp) != 0;
#elif defined(__APPLE__)
  return has_feature("hw.optional.arm.FEAT_DotProd");
#else
  return false;
#endif
}

// The 8-bit matrix products; since 2020 (Neoverse V1) and, at Apple, 2022 (M2).
bool has_matrix_product() {
#if defined(__linux__)
  constexpr unsigned long hwcap2_i8mm = 1UL << 13U;
  return has_dot_product() && (getauxval(AT_HWCAP2) & hwcap2_i8mm) != 0;
#elif defined(__APPLE__)
  return has_dot_product() && has_feature("hw.optional.arm.FEAT_I8MM");
#else
  return false;
#endif
}

constexpr Isa kIsas[] = {
    {"i8mm", has_matrix_product, fill_matmul_i8mm, fill_float_neon},
    {"neon", has_dot_product, fill_matmul_neon, fill_float_neon},
    {"portable", always, fill_matmul_portable, fill_float_portable},
};

#else

constexpr Isa kIsas[] = {{"portable", always, fill_matmul_portable, fill_float_portable}};

#endif

std::vector<KernelTable> build_tables() {
  std::vector<KernelTable> tables;
  for (const Isa& isa : kIsas) {
    if (!isa.runs_here()) continue;
    KernelTable table;
    table.name = isa.name;
    isa.fill_matmul(table);
    isa.fill_float(table);
    tables.push_back(table);
  }
  return tables;
}

const std::vector<KernelTable>& tables() {
  static const std::vector<KernelTable> built = build_tables();
  return built;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable& table : tables()) names.emplace_back(table.name);
  return names;
}

const KernelTable& select_kernels(std::string_view name) {
  if (name.empty()) {
    const char* chosen = std::getenv("LILY_CPU_ISA");
    if (chosen == nullptr || *chosen == '\0') return tables().front();
    name = chosen;
  }
  std::string available;
  for (const KernelTable& table : tables()) {
    if (name == table.name) return table;
    available += available.empty() ? "" : ", ";
    available += table.name;
  }
  throw Error(ErrorKind::config, "the CPU instruction set '" + std::string(name) +
                                     "' cannot run on this processor; choose one of: " + available +
                                     " (option or environment variable LILY_CPU_ISA)");
}

}  // namespace lily::cpu
