// device/cuda/driver.cpp -- opens libcuda and the first GPU.
#include "device/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>

#include "base/error.h"

namespace lily::device::cuda {
namespace {

[[noreturn]] void refuse(const std::string& reason) { throw Error(ErrorKind::backend, "the cuda device: " + reason); }

template <class Function>
void find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr) {
    refuse(std::string("the NVIDIA driver lacks ") + name + "; install one for CUDA 12.0 or later");
  }
}

[[noreturn]] void refuse_forked() {
  refuse(
      "CUDA was in use before this process was forked, so it cannot be used here; start processes another way "
      "(multiprocessing: \"spawn\")");
}

}  // namespace

std::shared_ptr<const Driver> Driver::load() {
  // The driver does not survive a fork. Some versions say so, others end the process.
  static const pid_t first_user = ::getpid();
  if (::getpid() != first_user) refuse_forked();
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse("there is no NVIDIA driver on this machine (libcuda.so.1 was not found); use backend=\"cpu\" instead");
  }
  // Never closed: its threads live as long as the process.
  std::shared_ptr<Driver> driver(new Driver);
  driver->find_functions(library);
  const Result result = driver->init(0);
  if (result == kNotInitialized) refuse_forked();
  if (result != kSuccess) refuse("the NVIDIA driver found no GPU to use: " + driver->text(result));
  return driver;
}

void Driver::find_functions(void* library) {
  find(library, "cuInit", init);
  find(library, "cuDriverGetVersion", driver_version);
  find(library, "cuGetErrorName", error_name);
  find(library, "cuGetErrorString", error_string);
  find(library, "cuDeviceGetCount", device_count);
  find(library, "cuDeviceGet", device_get);
  find(library, "cuDeviceGetName", device_name);
  find(library, "cuDeviceGetAttribute", device_attribute);
  find(library, "cuDevicePrimaryCtxRetain", retain_context);
  find(library, "cuDevicePrimaryCtxRelease_v2", release_context);
  find(library, "cuCtxPushCurrent_v2", push_context);
  find(library, "cuCtxPopCurrent_v2", pop_context);
  find(library, "cuMemGetInfo_v2", memory_info);
  find(library, "cuMemAlloc_v2", allocate);
  find(library, "cuMemFree_v2", free);
  find(library, "cuMemHostAlloc", allocate_host);
  find(library, "cuMemFreeHost", free_host);
  find(library, "cuMemcpyHtoDAsync_v2", copy_to_device);
  find(library, "cuMemcpyDtoHAsync_v2", copy_to_host);
  find(library, "cuMemsetD8Async", fill_bytes);
  find(library, "cuStreamCreate", create_stream);
  find(library, "cuStreamDestroy_v2", destroy_stream);
  find(library, "cuStreamSynchronize", synchronize_stream);
  find(library, "cuEventCreate", create_event);
  find(library, "cuEventDestroy_v2", destroy_event);
  find(library, "cuEventRecord", record_event);
  find(library, "cuEventQuery", query_event);
  find(library, "cuEventSynchronize", synchronize_event);
  find(library, "cuEventElapsedTime", elapsed);
  find(library, "cuModuleLoadData", load_module);
  find(library, "cuModuleUnload", unload_module);
  find(library, "cuModuleGetFunction", get_function);
  find(library, "cuFuncGetAttribute", function_attribute);
  find(library, "cuLaunchKernel", launch);
  find(library, "cuGraphCreate", create_graph);
  find(library, "cuGraphDestroy", destroy_graph);
  find(library, "cuGraphAddKernelNode_v2", add_kernel_node);
  find(library, "cuGraphAddDependencies", add_dependencies);
  find(library, "cuGraphInstantiateWithFlags", instantiate_graph);
  find(library, "cuGraphExecDestroy", destroy_graph_exec);
  find(library, "cuGraphExecKernelNodeSetParams_v2", set_kernel_node);
  find(library, "cuGraphLaunch", launch_graph);
}

std::string Driver::text(Result result) const {
  const char* name = nullptr;
  const char* description = nullptr;
  if (error_name(result, &name) != kSuccess || name == nullptr) name = "an unknown CUDA error";
  if (error_string(result, &description) != kSuccess || description == nullptr) description = "no description";
  return std::string(name) + " (" + description + ")";
}

void Driver::check(Result result, const std::string& what) const {
  if (result == kSuccess) return;
  const std::string message = "the cuda device: " + what + ": " + text(result);
  throw Error(result == kOutOfMemory ? ErrorKind::memory_limit : ErrorKind::backend, message);
}

Context::Context(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {
  int count = 0;
  driver_->check(driver_->device_count(&count), "counting the GPUs");
  if (count == 0) refuse("there is no NVIDIA GPU that this process may use");
  driver_->check(driver_->device_get(&device_, 0), "opening the first GPU");
  std::array<char, 256> name = {};
  driver_->check(driver_->device_name(name.data(), static_cast<int>(name.size()) - 1, device_), "naming the GPU");
  gpu_name_ = name.data();
  int major = 0;
  int minor = 0;
  driver_->check(driver_->device_attribute(&major, kComputeCapabilityMajor, device_), "asking the GPU's generation");
  driver_->check(driver_->device_attribute(&minor, kComputeCapabilityMinor, device_), "asking the GPU's generation");
  if (major < 8) refuse("the " + gpu_name_ + " is older than the Ampere generation, the first with bfloat16");
  architecture_ = "sm_" + std::to_string(10 * major + minor);
  driver_->check(driver_->retain_context(&handle_, device_), "opening a context on the " + gpu_name_);
}

Context::~Context() {
  if (handle_ != nullptr) driver_->release_context(device_);
}

}  // namespace lily::device::cuda
