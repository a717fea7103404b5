// device/cuda.cpp -- buffers, pipelines and passes of the cuda device.
#include "device/cuda.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_buffer.h"
#include "device/cuda/cuda_pipeline.h"
#include "device/cuda/cuda_ticket.h"
#include "device/cuda/driver.h"
#include "device/cuda/graph_cache.h"
#include "device/cuda/host_transfer.h"
#include "device/cuda/kernel_compiler.h"
#include "device/cuda/launch_list.h"
#include "device/pipeline_key.h"

namespace lily::device {

CudaDevice::CudaDevice(CudaOptions options)
    : options_(std::move(options)),
      context_(std::make_shared<const cuda::Context>(cuda::Driver::load())),
      transfer_(std::make_shared<cuda::HostTransfer>(context_)),
      allocated_(std::make_shared<std::atomic<std::uint64_t>>(0)),
      fate_(std::make_shared<cuda::SharedFate>()),
      compiler_(std::make_unique<cuda::KernelCompiler>(options_.library, options_.cache, context_->architecture())),
      graphs_(std::make_unique<cuda::GraphCache>(context_)) {
  const cuda::Context::Use use(*context_);
  context_->driver().check(context_->driver().create_stream(&stream_, cuda::kNonBlockingStream), "making a stream");
}

CudaDevice::~CudaDevice() {
  const cuda::Context::Use use(*context_, std::nothrow);
  context_->driver().synchronize_stream(stream_);
  graphs_.reset();
  pipelines_.clear();
  context_->driver().destroy_stream(stream_);
}

std::string CudaDevice::name() const { return "cuda, " + context_->gpu_name(); }

std::shared_ptr<Buffer> CudaDevice::allocate(std::uint64_t size, BufferStorage storage, std::string label) {
  return std::make_shared<cuda::CudaBuffer>(context_, transfer_, allocated_, size, storage, std::move(label));
}

std::shared_ptr<Buffer> CudaDevice::wrap(const std::byte* data, std::uint64_t size, std::string label,
                                         const CopyProgress& progress) {
  auto buffer = std::make_shared<cuda::CudaBuffer>(context_, transfer_, allocated_, size, BufferStorage::private_,
                                                   std::move(label));
  transfer_->upload(buffer->address(), data, size, progress);
  return buffer;
}

const Pipeline& CudaDevice::pipeline(const std::string& kernel, std::span<const FunctionConstant> constants) {
  const std::scoped_lock lock(mutex_);
  const cuda::KernelEntry& entry = compiler_->library().find(kernel);
  std::vector<FunctionConstant> used;
  std::ranges::copy_if(constants, std::back_inserter(used),
                       [&](const FunctionConstant& constant) { return entry.constants.contains(constant.index); });
  const std::string key = pipeline_key(kernel, used);
  auto found = pipelines_.find(key);
  if (found == pipelines_.end()) {
    auto made = std::make_unique<cuda::CudaPipeline>(context_, entry, compiler_->start(entry, constants));
    found = pipelines_.emplace(key, std::move(made)).first;
  }
  return *found->second;
}

std::vector<std::string> CudaDevice::kernel_names() const { return compiler_->library().names(); }

void CudaDevice::launch_one_by_one(cuda::LaunchList& list) {
  const cuda::Driver& driver = context_->driver();
  const auto launches = list.launches();
  for (std::size_t i = 0; i < launches.size(); ++i) {
    const cuda::Launch& launch = launches[i];
    cuda::Result result = driver.launch(launch.function, launch.grid.x, launch.grid.y, launch.grid.z, launch.threads, 1,
                                        1, launch.threadgroup_bytes, stream_, list.parameters(i), nullptr);
    if (result == cuda::kSuccess && options_.synchronous) result = driver.synchronize_stream(stream_);
    driver.check(result, "running kernel " + launch.pipeline->name());
  }
}

std::unique_ptr<Ticket> CudaDevice::start(std::span<const Stage> stages) {
  const cuda::Context::Use use(*context_);
  const cuda::Driver& driver = context_->driver();
  cuda::LaunchList list(stages);
  auto ticket = std::make_unique<cuda::CudaTicket>(context_, fate_);
  for (cuda::CudaBuffer* buffer : list.shared_used()) {
    if (!buffer->changed()) continue;
    driver.check(driver.copy_to_device(buffer->address(), buffer->host_copy(), buffer->size(), stream_),
                 "copying '" + buffer->label() + "' to the GPU");
    buffer->note_copied();
  }
  cuda::GraphExecHandle* graph = options_.synchronous ? nullptr : graphs_->find(list);
  ticket->begin().record(stream_);
  if (graph != nullptr) {
    driver.check(driver.launch_graph(graph, stream_), "starting a pass");
  } else {
    launch_one_by_one(list);
  }
  ticket->kernels_done().record(stream_);
  for (cuda::CudaBuffer* buffer : list.shared_written()) {
    driver.check(driver.copy_to_host(buffer->host_copy(), buffer->address(), buffer->size(), stream_),
                 "copying '" + buffer->label() + "' from the GPU");
  }
  ticket->end().record(stream_);
  return ticket;
}

std::unique_ptr<Ticket> CudaDevice::submit(std::span<const Stage> stages) {
  const std::scoped_lock lock(mutex_);
  {
    const std::scoped_lock fate_lock(fate_->mutex);
    if (!fate_->lost.empty()) return std::make_unique<cuda::FailedTicket>(fate_->lost);
  }
  std::string error;
  ErrorKind kind = ErrorKind::backend;
  try {
    return start(stages);
  } catch (const Error& thrown) {
    error = thrown.what();
    kind = thrown.kind();
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  const cuda::Context::Use use(*context_, std::nothrow);
  context_->driver().synchronize_stream(stream_);  // kernels that did start use memory that the caller may free
  return std::make_unique<cuda::FailedTicket>(error, kind);
}

}  // namespace lily::device
