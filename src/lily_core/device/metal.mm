// device/metal.mm -- opens Apple's GPU, and puts its buffers, pipelines and passes together.
#include "device/metal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include "device/metal/buffer.h"
#include "device/metal/metal_device.h"
#include "device/metal/queue.h"
#include "device/metal/run_on_threads.h"
#include "device/metal/tensor_probe.h"
#include "device/metal/text.h"
#include "device/pipeline_key.h"
#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device {
namespace metal {
namespace {

id<MTLCommandQueue> make_queue(id<MTLDevice> device) {
  id<MTLCommandQueue> queue = [device newCommandQueue];
  if (queue == nil) throw Error(ErrorKind::backend, "Metal made no command queue");
  queue.label = @"Lily";
  return queue;
}

// Bytes that Metal recommends as a working set, minus what this process already holds, for example in other models.
std::uint64_t room_of(id<MTLDevice> device) {
  const std::uint64_t recommended = device.recommendedMaxWorkingSetSize;
  const std::uint64_t held = device.currentAllocatedSize;
  return recommended > held ? recommended - held : 1;
}

std::string highest_family(id<MTLDevice> device) {
  struct Family {
    NSInteger number;
    const char* name;
  };
  constexpr std::array<Family, 5> families = {
      {{1011, "Apple11"}, {1010, "Apple10"}, {1009, "Apple9"}, {1008, "Apple8"}, {1007, "Apple7"}}};
  for (const Family& family : families) {
    if ([device supportsFamily:static_cast<MTLGPUFamily>(family.number)]) return family.name;
  }
  return "older than Apple7";
}

}  // namespace

// Without a login session, or in a process that has loaded no graphics framework, there may be no default device although
// there is a GPU.
id<MTLDevice> _Nullable find_gpu() {
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  if (device != nil) return device;
  return MTLCopyAllDevices().firstObject;
}

std::string missing_in(id<MTLDevice> device) {
  if ([device supportsFamily:MTLGPUFamilyApple7] && device.hasUnifiedMemory) return "";
  return text_of(device.name) + " is not an Apple GPU of family Apple7 (M1) or later";
}

MetalDevice::MetalDevice(id<MTLDevice> device)
    : device_(device),
      queue_(make_queue(device)),
      sources_(packaged_sources()),
      budget_(std::make_shared<MemoryBudget>(
          MemoryLimits{.working_set = room_of(device),
                       .buffer = device.maxBufferLength,
                       .machine = NSProcessInfo.processInfo.physicalMemory})),
      residency_(make_residency(device, queue_)),
      compiler_(device, sources_),
      submission_(std::make_shared<MetalQueue>(device, queue_, residency_)) {
  run_first_commands();
}

// Residency sets of a queue that never ran anything are not released.
void MetalDevice::run_first_commands() {
  id<MTLBuffer> buffer = [device_ newBufferWithLength:16 options:MTLResourceStorageModeShared];
  id<MTLCommandBuffer> commands = [queue_ commandBuffer];
  id<MTLBlitCommandEncoder> encoder = [commands blitCommandEncoder];
  if (buffer == nil || commands == nil || encoder == nil) {
    throw Error(ErrorKind::backend, "the GPU takes no commands");
  }
  [encoder fillBuffer:buffer range:NSMakeRange(0, 16) value:0];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  NSError* error = commands.error;
  if (error != nil) throw Error(ErrorKind::backend, "the GPU does not complete a first command: " + text_of(error));
}

std::string MetalDevice::name() const {
  @autoreleasepool {
    return "Metal (" + text_of(device_.name) + ")";
  }
}

std::shared_ptr<Buffer> MetalDevice::allocate(std::uint64_t size, BufferStorage storage, std::string label) {
  @autoreleasepool {
    return std::make_shared<MetalBuffer>(device_, MetalBuffer::Owner{budget_, residency_}, size, storage,
                                         std::move(label));
  }
}

std::shared_ptr<Buffer> MetalDevice::wrap(const std::byte* data, std::uint64_t size, std::string label,
                                          const CopyProgress& /*progress*/) {
  @autoreleasepool {
    return std::make_shared<MetalBuffer>(device_, MetalBuffer::Owner{budget_, residency_}, data, size,
                                         std::move(label));
  }
}

const Pipeline& MetalDevice::pipeline(const std::string& kernel, std::span<const FunctionConstant> constants) {
  return pipelines_.find_or_make(pipeline_key(kernel, constants), [&] {
    @autoreleasepool {
      const std::size_t library = sources_.library_of(kernel);
      return std::make_unique<MetalPipeline>(device_, compiler_.library(library), sources_.libraries()[library], kernel,
                                             constants);
    }
  });
}

// The compiler is another process, which takes several requests at a time.
void MetalDevice::compile(std::span<const PipelineRequest> requests, const CompileProgress& progress) {
  const auto work = [&](std::size_t i) {
    static_cast<void>(pipeline(requests[i].kernel, requests[i].constants));
  };
  const auto tell = [&](std::size_t done) {
    if (progress) progress(done, requests.size());
  };
  run_on_threads(requests.size(), std::clamp(std::thread::hardware_concurrency(), 2U, 8U), work, tell);
}

std::vector<std::string> MetalDevice::rejected_sources() {
  std::vector<std::string> messages;
  for (std::size_t i = 0; i < sources_.libraries().size(); ++i) {
    if (sources_.libraries()[i].uses_tensors()) continue;
    @autoreleasepool {
      try {
        static_cast<void>(compiler_.library(i));
      } catch (const Error& error) {
        messages.emplace_back(error.what());
      }
    }
  }
  return messages;
}

std::unique_ptr<Ticket> MetalDevice::submit(std::span<const Stage> stages) { return submission_.submit(stages); }

const TensorVerdict& MetalDevice::tensor_verdict() {
  std::call_once(tensor_once_, [this] {
    @autoreleasepool {
      MachineTensorProbe probe(device_, *this, sources_);
      tensor_verdict_ = decide_tensor(probe, parse_tensor_switch(std::getenv("LILY_METAL_TENSOR")),
                                      VerdictCache(verdict_file()), probe.cache_key());
    }
  });
  return tensor_verdict_;
}

}  // namespace metal

bool has_metal() {
  @autoreleasepool {
    id<MTLDevice> gpu = metal::find_gpu();
    return gpu != nil && metal::missing_in(gpu).empty();
  }
}

std::shared_ptr<Device> open_metal() {
  @autoreleasepool {
    id<MTLDevice> gpu = metal::find_gpu();
    if (gpu == nil) {
      throw Error(ErrorKind::backend,
                  "Metal shows this process no GPU (a virtual machine, a sandbox, or no login session?); load the model "
                  "with backend=\"cpu\"");
    }
    const std::string missing = metal::missing_in(gpu);
    if (!missing.empty()) throw Error(ErrorKind::backend, missing + "; load the model with backend=\"cpu\"");
    return std::make_shared<metal::MetalDevice>(gpu);
  }
}

std::optional<MetalFacts> metal_facts() {
  @autoreleasepool {
    MetalFacts facts;
    facts.system = metal::text_of(NSProcessInfo.processInfo.operatingSystemVersionString);
    facts.language = metal::language_version();
    facts.page_bytes = static_cast<std::uint64_t>(::getpagesize());
    facts.residency_sets = metal::has_residency_sets();
    id<MTLDevice> gpu = metal::find_gpu();
    if (gpu == nil) {
      facts.problem = "Metal shows this process no GPU (a virtual machine, a sandbox, or no login session?)";
      return facts;
    }
    facts.device = metal::text_of(gpu.name);
    facts.architecture = metal::text_of(gpu.architecture.name);
    facts.family = metal::highest_family(gpu);
    facts.working_set_bytes = gpu.recommendedMaxWorkingSetSize;
    facts.buffer_bytes = gpu.maxBufferLength;
    facts.threadgroup_bytes = gpu.maxThreadgroupMemoryLength;
    facts.unified_memory = gpu.hasUnifiedMemory;
    facts.problem = metal::missing_in(gpu);
    if (!facts.problem.empty()) return facts;
    try {
      metal::MetalDevice device(gpu);
      for (const metal::LibrarySource& library : device.sources().libraries()) facts.kernels += library.kernels.size();
      facts.rejected = device.rejected_sources();
      const metal::TensorVerdict& verdict = device.tensor_verdict();
      facts.tensor_gemm = verdict.enabled;
      facts.tensor_reason = verdict.reason;
    } catch (const std::exception& error) {
      facts.problem = error.what();
    }
    return facts;
  }
}

}  // namespace lily::device

NS_ASSUME_NONNULL_END
