// device/cuda/nvrtc.h -- NVIDIA's run-time compiler, found at run time: CUDA C++ to machine code, no GPU needed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace lily::device::cuda {

struct CompiledKernel {
  std::string cubin;
  std::string log;  // warnings, and with report_resources registers, stack and spills
};

class Nvrtc {
 public:
  // Opens the library: $LILY_NVRTC, the loader's path, the folders of Python packages in this process (the wheels
  // nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12), /usr/local/cuda. Throws Error(backend).
  Nvrtc();
  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  [[nodiscard]] const std::string& version() const { return version_; }  // "13.0"
  // How it translates: its version and options. Equal sources give equal machine code while this is equal.
  [[nodiscard]] std::string dialect() const;

  // Throws Error(backend) with the compiler's messages. Safe to call from several threads.
  [[nodiscard]] CompiledKernel compile(const std::string& name, const std::string& source, const std::string& header,
                                       const std::string& architecture, bool report_resources) const;

 private:
  struct Program;
  using Status = int;  // nvrtcResult; 0 is success

  void find_functions();
  [[nodiscard]] std::string log_of(Program* program) const;

  void* library_ = nullptr;
  std::string version_;
  Status (*version_function_)(int*, int*) = nullptr;
  const char* (*error_string_)(Status) = nullptr;
  Status (*create_)(Program**, const char* source, const char* name, int, const char* const* headers,
                    const char* const* names) = nullptr;
  Status (*destroy_)(Program**) = nullptr;
  Status (*compile_)(Program*, int, const char* const* options) = nullptr;
  Status (*cubin_size_)(Program*, std::size_t*) = nullptr;
  Status (*cubin_)(Program*, char*) = nullptr;
  Status (*log_size_)(Program*, std::size_t*) = nullptr;
  Status (*log_)(Program*, char*) = nullptr;
};

}  // namespace lily::device::cuda
