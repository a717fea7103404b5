// cpu/topology.cpp -- how many physical cores this process may use.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "cpu/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {
namespace {

#if defined(__linux__)

// Distinct (package, core) pairs among the processors of the affinity mask; 0 when it cannot be told.
std::int64_t affinity_core_count() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return 0;
  std::set<std::pair<std::string, std::string>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::ifstream package_file(folder + "physical_package_id");
    std::ifstream core_file(folder + "core_id");
    std::string package;
    std::string core = "logical " + std::to_string(cpu);  // without topology every processor counts
    package_file >> package;
    core_file >> core;
    cores.emplace(package, core);
  }
  return static_cast<std::int64_t>(cores.size());
}

// Processors that the cgroup's quota amounts to, rounded up; a large number without a quota.
std::int64_t quota_core_count() {
  constexpr std::int64_t unlimited = 1 << 20;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0.0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0.0) return unlimited;
  const double cores = std::strtod(quota.c_str(), nullptr) / period;
  return cores > 0.0 ? static_cast<std::int64_t>(std::ceil(cores)) : unlimited;
}

#endif

}  // namespace

std::int64_t physical_core_count() {
  std::int64_t count = 0;
#if defined(__linux__)
  count = std::min(affinity_core_count(), quota_core_count());
#elif defined(__APPLE__)
  int cores = 0;
  std::size_t size = sizeof(cores);
  if (sysctlbyname("hw.physicalcpu", &cores, &size, nullptr, 0) == 0) count = cores;
#endif
  if (count < 1) count = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  return std::max<std::int64_t>(count, 1);
}

}  // namespace lily::cpu
