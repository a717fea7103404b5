// device/cuda/driver.cpp -- opens libcuda and the first GPU.
#include "device/cuda/driver.h"

#include <dlfcn.h>

#include <array>

#include "engine/error.h"

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

}  // namespace

std::shared_ptr<const Driver> Driver::load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse("there is no NVIDIA driver on this machine (libcuda.so.1 was not found); use backend=\"cpu\" instead");
  }
  std::shared_ptr<Driver> driver(new Driver(library));
  driver->find_functions();
  const Result result = driver->init(0);
  if (result != kSuccess) refuse("the NVIDIA driver found no GPU to use: " + driver->text(result));
  return driver;
}

Driver::~Driver() { dlclose(library_); }

void Driver::find_functions() {
  find(library_, "cuInit", init);
  find(library_, "cuDriverGetVersion", driver_version);
  find(library_, "cuGetErrorName", error_name);
  find(library_, "cuGetErrorString", error_string);
  find(library_, "cuDeviceGetCount", device_count);
  find(library_, "cuDeviceGet", device_get);
  find(library_, "cuDeviceGetName", device_name);
  find(library_, "cuDeviceGetAttribute", device_attribute);
  find(library_, "cuDevicePrimaryCtxRetain", retain_context);
  find(library_, "cuDevicePrimaryCtxRelease_v2", release_context);
  find(library_, "cuCtxPushCurrent_v2", push_context);
  find(library_, "cuCtxPopCurrent_v2", pop_context);
  find(library_, "cuMemGetInfo_v2", memory_info);
  find(library_, "cuMemAlloc_v2", allocate);
  find(library_, "cuMemFree_v2", free);
  find(library_, "cuMemHostAlloc", allocate_host);
  find(library_, "cuMemFreeHost", free_host);
  find(library_, "cuMemcpyHtoDAsync_v2", copy_to_device);
  find(library_, "cuMemcpyDtoHAsync_v2", copy_to_host);
  find(library_, "cuMemsetD8Async", fill_bytes);
  find(library_, "cuStreamCreate", create_stream);
  find(library_, "cuStreamDestroy_v2", destroy_stream);
  find(library_, "cuStreamSynchronize", synchronize_stream);
  find(library_, "cuEventCreate", create_event);
  find(library_, "cuEventDestroy_v2", destroy_event);
  find(library_, "cuEventRecord", record_event);
  find(library_, "cuEventQuery", query_event);
  find(library_, "cuEventSynchronize", synchronize_event);
  find(library_, "cuEventElapsedTime", elapsed);
  find(library_, "cuModuleLoadData", load_module);
  find(library_, "cuModuleUnload", unload_module);
  find(library_, "cuModuleGetFunction", get_function);
  find(library_, "cuFuncGetAttribute", function_attribute);
  find(library_, "cuLaunchKernel", launch);
  find(library_, "cuGraphCreate", create_graph);
  find(library_, "cuGraphDestroy", destroy_graph);
  find(library_, "cuGraphAddKernelNode_v2", add_kernel_node);
  find(library_, "cuGraphAddDependencies", add_dependencies);
  find(library_, "cuGraphInstantiateWithFlags", instantiate_graph);
  find(library_, "cuGraphExecDestroy", destroy_graph_exec);
  find(library_, "cuGraphExecKernelNodeSetParams_v2", set_kernel_node);
  find(library_, "cuGraphLaunch", launch_graph);
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
