// device/cuda/nvrtc.cpp -- finds, opens and calls NVRTC.
#include "device/cuda/nvrtc.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <set>

#include "base/error.h"

namespace lily::device::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 3> kNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
constexpr std::array<const char*, 3> kOptions = {"-std=c++17", "-default-device", "-diag-suppress=128"};

// Folders that Python packages are installed in, as far as extension modules from there are loaded.
std::set<fs::path> package_folders() {
  std::set<fs::path> folders;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        const fs::path path = info->dlpi_name;
        fs::path folder;
        for (const fs::path& part : path) {
          folder /= part;
          if (part == "site-packages" || part == "dist-packages")
            static_cast<std::set<fs::path>*>(data)->insert(folder);
        }
        return 0;
      },
      &folders);
  return folders;
}

void add_libraries(const fs::path& folder, std::vector<fs::path>& found) {
  std::error_code ignored;
  for (const char* name : kNames) {
    if (fs::exists(folder / name, ignored)) found.push_back(folder / name);
  }
}

// Files to try after the loader's own path.
std::vector<fs::path> candidates() {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::path& packages : package_folders()) {
    for (const auto& entry : fs::directory_iterator(packages / "nvidia", ignored)) {
      add_libraries(entry.path() / "lib", found);
    }
  }
  for (const char* folder : {"/usr/local/cuda/lib64", "/opt/cuda/lib64"}) add_libraries(folder, found);
  return found;
}

// NVRTC opens its library of built-in functions by name alone: have it loaded before.
void open_builtins(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("libnvrtc-builtins.so.") && name.find(".alt.") == std::string::npos) {
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
  }
}

void* open_library() {
  if (const char* chosen = std::getenv("LILY_NVRTC"); chosen != nullptr) {
    open_builtins(fs::path(chosen).parent_path());
    void* library = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return library;
    throw Error(ErrorKind::backend, std::string("the cuda device: $LILY_NVRTC cannot be loaded: ") + dlerror());
  }
  for (const char* name : kNames) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  }
  for (const fs::path& path : candidates()) {
    open_builtins(path.parent_path());
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  }
  throw Error(ErrorKind::backend,
              "the cuda device compiles its kernels with NVRTC, which was not found; install it with `pip install "
              "nvidia-cuda-nvrtc` (or nvidia-cuda-nvrtc-cu12 for a CUDA 12 driver), or name the library in LILY_NVRTC");
}

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) throw Error(ErrorKind::backend, std::string("the cuda device: NVRTC lacks ") + name);
}

}  // namespace

Nvrtc::Nvrtc() : library_(open_library()) {
  find_functions();
  int major = 0;
  int minor = 0;
  version_function_(&major, &minor);
  version_ = std::to_string(major) + "." + std::to_string(minor);
}

// Never closed: its threads and tables live as long as the process.
Nvrtc::~Nvrtc() = default;

void Nvrtc::find_functions() {
  find(library_, "nvrtcVersion", version_function_);
  find(library_, "nvrtcGetErrorString", error_string_);
  find(library_, "nvrtcCreateProgram", create_);
  find(library_, "nvrtcDestroyProgram", destroy_);
  find(library_, "nvrtcCompileProgram", compile_);
  find(library_, "nvrtcGetCUBINSize", cubin_size_);
  find(library_, "nvrtcGetCUBIN", cubin_);
  find(library_, "nvrtcGetProgramLogSize", log_size_);
  find(library_, "nvrtcGetProgramLog", log_);
}

std::string Nvrtc::log_of(Program* program) const {
  std::size_t size = 0;
  if (log_size_(program, &size) != 0 || size <= 1) return {};
  std::string log(size, '\0');
  if (log_(program, log.data()) != 0) return {};
  log.resize(size - 1);  // it ends with a zero
  return log;
}

std::string Nvrtc::dialect() const {
  std::string dialect = "NVRTC " + version_;
  for (const char* const option : kOptions) dialect += std::string(" ") + option;
  return dialect;
}

CompiledKernel Nvrtc::compile(const std::string& name, const std::string& source, const std::string& header,
                              const std::string& architecture, bool report_resources) const {
  const char* const headers[] = {header.c_str()};
  const char* const header_names[] = {"lily_msl.h"};
  Program* program = nullptr;
  Status status = create_(&program, source.c_str(), (name + ".cu").c_str(), 1, headers, header_names);
  if (status != 0) throw Error(ErrorKind::backend, "the cuda device: NVRTC: " + std::string(error_string_(status)));
  const std::unique_ptr<Program, std::function<void(Program*)>> owner(program, [this](Program* p) { destroy_(&p); });
  const std::string target = "-arch=" + architecture;
  std::vector<const char*> options(kOptions.begin(), kOptions.end());
  options.push_back(target.c_str());
  if (report_resources) options.push_back("--ptxas-options=-v");
  status = compile_(program, static_cast<int>(options.size()), options.data());
  CompiledKernel result;
  result.log = log_of(program);
  if (status != 0) {
    throw Error(ErrorKind::backend, "kernel " + name + " does not compile for " + architecture + " with NVRTC " +
                                        version_ + ": " + error_string_(status) + "\n" + result.log);
  }
  std::size_t size = 0;
  if (cubin_size_(program, &size) != 0) size = 0;
  result.cubin.resize(size);
  if (size == 0 || cubin_(program, result.cubin.data()) != 0) {
    throw Error(ErrorKind::backend, "the cuda device: NVRTC " + version_ + " gave no machine code for " + name);
  }
  return result;
}

}  // namespace lily::device::cuda
