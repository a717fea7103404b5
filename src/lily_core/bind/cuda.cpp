// bind/cuda.cpp -- the cuda device with its options, and its compiler alone, which needs no GPU.
#ifdef LILY_HAS_CUDA
#include "device/cuda.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bind/bind.h"
#include "device/cuda/kernel_library.h"
#include "device/cuda/nvrtc.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using device::CudaDevice;

// Kernels of a folder and the compiler, for tests.
struct CudaCompiler {
  device::cuda::KernelLibrary library;
  device::cuda::Nvrtc nvrtc;

  explicit CudaCompiler(const std::string& folder) : library(folder) {}
};

std::vector<std::pair<std::uint32_t, std::string>> constants_of(const CudaCompiler& compiler,
                                                                const std::string& kernel) {
  const auto& constants = compiler.library.find(kernel).constants;
  return {constants.begin(), constants.end()};
}

std::pair<nb::bytes, std::string> compile(const CudaCompiler& compiler, const std::string& kernel,
                                          const std::vector<std::pair<std::uint32_t, std::int32_t>>& constants,
                                          const std::string& architecture) {
  std::vector<device::FunctionConstant> values;
  values.reserve(constants.size());
  for (const auto& [index, value] : constants) values.push_back({index, value});
  device::cuda::CompiledKernel compiled;
  {
    const nb::gil_scoped_release released;
    const std::string source = compiler.library.source(compiler.library.find(kernel), values);
    compiled = compiler.nvrtc.compile(kernel, source, compiler.library.header(), architecture, true);
  }
  return {nb::bytes(compiled.cubin.data(), compiled.cubin.size()), std::move(compiled.log)};
}

}  // namespace

void bind_cuda(nb::module_& devices) {
  nb::class_<CudaDevice, device::Device>(devices, "CudaDevice", "The first NVIDIA GPU.")
      .def(
          "__init__",
          [](CudaDevice* self, const std::string& library, const std::string& cache, bool synchronous) {
            new (self) CudaDevice({.library = library, .cache = cache, .synchronous = synchronous});
          },
          nb::kw_only(), "library"_a = "", "cache"_a = "", "synchronous"_a = false)
      .def("kernel_names", &CudaDevice::kernel_names);
  nb::class_<CudaCompiler>(devices, "CudaCompiler", "Compiles the kernels of a folder; needs NVRTC but no GPU.")
      .def(nb::init<const std::string&>(), nb::kw_only(), "library"_a = "")
      .def_prop_ro("version", [](const CudaCompiler& self) { return self.nvrtc.version(); })
      .def("kernel_names", [](const CudaCompiler& self) { return self.library.names(); })
      .def("constants", &constants_of, "kernel"_a, "Index and name of the function constants that a kernel uses.")
      .def("compile", &compile, "kernel"_a, "constants"_a, "architecture"_a = "sm_90",
           "The machine code, and the compiler's report of registers and spills.");
}

}  // namespace lily::bind
#endif
