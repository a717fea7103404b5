// device/sim/kernel_library.cpp -- finds and opens the library, and lists its kernels.
#include "device/sim/kernel_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace lily::device::sim {
namespace {

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorKind::backend, "the sim device: " + reason); }

// Beside the file that this code was loaded from, symbolic links followed or not.
std::filesystem::path find_shipped(const std::string& name) {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&find_shipped), &info) == 0 || info.dli_fname == nullptr) {
    refuse("the place of Lily's native module is unknown");
  }
  const std::filesystem::path module = info.dli_fname;
  std::error_code ignored;
  const std::array<std::filesystem::path, 2> folders = {module.parent_path(),
                                                        std::filesystem::canonical(module, ignored).parent_path()};
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / name, ignored)) return folder / name;
  }
  refuse("this build of Lily has no " + name + " (it is built on Linux with LILY_SIM=ON)");
}

void check_processor() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) {
    refuse("the processor lacks AVX2, FMA or BMI2, which the translated kernels are compiled for");
  }
#endif
}

}  // namespace

KernelLibrary::KernelLibrary(std::filesystem::path path, bool checked) : path_(std::move(path)) {
  check_processor();
  if (path_.empty()) path_ = find_shipped(checked ? "_sim_kernels_checked.so" : "_sim_kernels.so");
  // Never unmapped: it installs signal handlers.
  handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle_ == nullptr) refuse(dlerror());
  using Query = const lily_sim::Library* (*)();
  const auto query = reinterpret_cast<Query>(dlsym(handle_, "lily_sim_library"));
  if (query == nullptr) refuse(path_.string() + " is not a library of kernels");
  api_ = query();
  if (api_->abi_version != lily_sim::kAbiVersion) refuse(path_.string() + " belongs to another version of Lily");
  if (api_->checked != checked) refuse(path_.string() + (checked ? " is not checked" : " is the checked library"));
  std::filesystem::path lines = path_;
  lines.replace_extension(".lines");
  api_->load_lines(lines.c_str());
  for (const lily_sim::EntryList* const* list = api_->entry_lists; *list != nullptr; ++list) {
    for (lily_sim::u32 i = 0; i < (*list)->count; ++i) {
      const lily_sim::Entry& entry = (*list)->entries[i];
      if (!entries_.emplace(entry.name, &entry).second) refuse("two kernels have the name " + std::string(entry.name));
    }
  }
}

KernelLibrary::~KernelLibrary() {
  if (handle_ != nullptr) dlclose(handle_);
}

const lily_sim::Entry* KernelLibrary::find(const std::string& kernel) const {
  const auto found = entries_.find(kernel);
  return found == entries_.end() ? nullptr : found->second;
}

std::vector<std::string> KernelLibrary::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace lily::device::sim
