// device/cuda/driver.h -- the part of the CUDA driver API that Lily uses, found in libcuda at run time.
//
// Declared here after NVIDIA's public documentation, so that Lily builds and imports where no CUDA is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace lily::device::cuda {

using Result = int;  // CUresult; 0 is success
using DeviceAddress = std::uint64_t;
struct ContextHandle;
struct StreamHandle;
struct EventHandle;
struct ModuleHandle;
struct FunctionHandle;
struct GraphHandle;
struct GraphNodeHandle;
struct GraphExecHandle;

constexpr Result kSuccess = 0;
constexpr Result kOutOfMemory = 2;
constexpr Result kNotInitialized = 3;
constexpr Result kNotReady = 600;

// CUdevice_attribute
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
// CUfunction_attribute
constexpr int kLocalBytes = 3;
constexpr int kRegisters = 4;
// CUstream_flags, CUevent_flags
constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kEventDefault = 0;
constexpr unsigned kPortableHostMemory = 1;

// CUDA_KERNEL_NODE_PARAMS_v2
struct KernelNodeParameters {
  FunctionHandle* function = nullptr;
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  void** parameters = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  ContextHandle* context = nullptr;
};

class Driver {
 public:
  // Throws Error(backend) when there is no driver, or no GPU.
  [[nodiscard]] static std::shared_ptr<const Driver> load();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // "CUDA_ERROR_...: description".
  [[nodiscard]] std::string text(Result result) const;
  // Throws Error(backend) naming what was tried, Error(memory_limit) when there was no room.
  void check(Result result, const std::string& what) const;

  Result (*init)(unsigned flags) = nullptr;
  Result (*driver_version)(int* version) = nullptr;
  Result (*error_name)(Result, const char**) = nullptr;
  Result (*error_string)(Result, const char**) = nullptr;
  Result (*device_count)(int*) = nullptr;
  Result (*device_get)(int* device, int ordinal) = nullptr;
  Result (*device_name)(char*, int length, int device) = nullptr;
  Result (*device_attribute)(int*, int attribute, int device) = nullptr;
  Result (*retain_context)(ContextHandle**, int device) = nullptr;
  Result (*release_context)(int device) = nullptr;
  Result (*push_context)(ContextHandle*) = nullptr;
  Result (*pop_context)(ContextHandle**) = nullptr;
  Result (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  Result (*allocate)(DeviceAddress*, std::size_t) = nullptr;
  Result (*free)(DeviceAddress) = nullptr;
  Result (*allocate_host)(void**, std::size_t, unsigned flags) = nullptr;
  Result (*free_host)(void*) = nullptr;
  Result (*copy_to_device)(DeviceAddress, const void*, std::size_t, StreamHandle*) = nullptr;
  Result (*copy_to_host)(void*, DeviceAddress, std::size_t, StreamHandle*) = nullptr;
  Result (*fill_bytes)(DeviceAddress, unsigned char, std::size_t, StreamHandle*) = nullptr;
  Result (*create_stream)(StreamHandle**, unsigned flags) = nullptr;
  Result (*destroy_stream)(StreamHandle*) = nullptr;
  Result (*synchronize_stream)(StreamHandle*) = nullptr;
  Result (*create_event)(EventHandle**, unsigned flags) = nullptr;
  Result (*destroy_event)(EventHandle*) = nullptr;
  Result (*record_event)(EventHandle*, StreamHandle*) = nullptr;
  Result (*query_event)(EventHandle*) = nullptr;
  Result (*synchronize_event)(EventHandle*) = nullptr;
  Result (*elapsed)(float* milliseconds, EventHandle*, EventHandle*) = nullptr;
  Result (*load_module)(ModuleHandle**, const void* image) = nullptr;
  Result (*unload_module)(ModuleHandle*) = nullptr;
  Result (*get_function)(FunctionHandle**, ModuleHandle*, const char*) = nullptr;
  Result (*function_attribute)(int*, int attribute, FunctionHandle*) = nullptr;
  Result (*launch)(FunctionHandle*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared_bytes,
                   StreamHandle*, void** parameters, void** extra) = nullptr;
  Result (*create_graph)(GraphHandle**, unsigned flags) = nullptr;
  Result (*destroy_graph)(GraphHandle*) = nullptr;
  Result (*add_kernel_node)(GraphNodeHandle**, GraphHandle*, GraphNodeHandle* const* after, std::size_t,
                            const KernelNodeParameters*) = nullptr;
  Result (*add_dependencies)(GraphHandle*, GraphNodeHandle* const* from, GraphNodeHandle* const* to,
                             std::size_t) = nullptr;
  Result (*instantiate_graph)(GraphExecHandle**, GraphHandle*, unsigned long long flags) = nullptr;
  Result (*destroy_graph_exec)(GraphExecHandle*) = nullptr;
  Result (*set_kernel_node)(GraphExecHandle*, GraphNodeHandle*, const KernelNodeParameters*) = nullptr;
  Result (*launch_graph)(GraphExecHandle*, StreamHandle*) = nullptr;

 private:
  Driver() = default;
  void find_functions(void* library);
};

// The first GPU's primary context, which other CUDA libraries of the process share.
class Context {
 public:
  explicit Context(std::shared_ptr<const Driver> driver);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Driver& driver() const { return *driver_; }
  [[nodiscard]] const std::string& gpu_name() const { return gpu_name_; }
  [[nodiscard]] const std::string& architecture() const { return architecture_; }  // "sm_90"

  // Makes the context current in this thread for a while.
  class Use {
   public:
    // Throws Error.
    explicit Use(const Context& context) : Use(context, std::nothrow) {
      driver_.check(entered_, "using the GPU in this thread");
    }
    // For destructors and other code that goes on in any case.
    Use(const Context& context, std::nothrow_t /*unused*/)
        : driver_(*context.driver_), entered_(driver_.push_context(context.handle_)) {}
    ~Use() {
      ContextHandle* popped = nullptr;
      if (entered_ == kSuccess) driver_.pop_context(&popped);  // else the caller's own context would go
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const Driver& driver_;
    Result entered_;
  };

 private:
  std::shared_ptr<const Driver> driver_;
  int device_ = 0;
  ContextHandle* handle_ = nullptr;
  std::string gpu_name_;
  std::string architecture_;
};

}  // namespace lily::device::cuda
