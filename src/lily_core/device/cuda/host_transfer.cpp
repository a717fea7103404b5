// device/cuda/host_transfer.cpp -- two blocks of pinned memory: one is filled while the other is on its way.
#include "device/cuda/host_transfer.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

namespace lily::device::cuda {
namespace {

constexpr std::size_t kSmallBlock = std::size_t{2} << 20;
constexpr std::size_t kLargeBlock = std::size_t{64} << 20;
constexpr std::size_t kCopyThreads = 4;  // reading a mapped file's pages takes longer than the bus

void copy_in_parallel(std::byte* to, const std::byte* from, std::size_t size) {
  if (size < kSmallBlock) {
    std::memcpy(to, from, size);
    return;
  }
  const std::size_t part = (size + kCopyThreads - 1) / kCopyThreads;
  std::vector<std::jthread> threads;
  for (std::size_t begin = 0; begin < size; begin += part) {
    threads.emplace_back([=] { std::memcpy(to + begin, from + begin, std::min(part, size - begin)); });
  }
}

}  // namespace

PinnedMemory::PinnedMemory(std::shared_ptr<const Context> context, std::size_t size)
    : context_(std::move(context)), size_(size) {
  const Context::Use use(*context_);
  void* data = nullptr;
  const Driver& driver = context_->driver();
  driver.check(driver.allocate_host(&data, size, kPortableHostMemory),
               "pinning " + std::to_string(size) + " bytes of host memory");
  data_ = static_cast<std::byte*>(data);
}

PinnedMemory::~PinnedMemory() {
  const Context::Use use(*context_, std::nothrow);
  context_->driver().free_host(data_);
}

HostTransfer::HostTransfer(std::shared_ptr<const Context> context) : context_(std::move(context)) {
  const Context::Use use(*context_);
  const Driver& driver = context_->driver();
  try {
    driver.check(driver.create_stream(&stream_, kNonBlockingStream), "making a stream for copies");
    for (EventHandle*& event : copied_) driver.check(driver.create_event(&event, kEventDefault), "making an event");
  } catch (...) {
    release();
    throw;
  }
}

HostTransfer::~HostTransfer() {
  const Context::Use use(*context_, std::nothrow);
  release();
}

void HostTransfer::release() {
  for (EventHandle* event : copied_) {
    if (event != nullptr) context_->driver().destroy_event(event);
  }
  if (stream_ != nullptr) context_->driver().destroy_stream(stream_);
}

// At the end of a call, also of one that fails: nothing is on its way any more, so blocks and memory may be used anew.
class HostTransfer::Finish {
 public:
  Finish(const Driver& driver, StreamHandle* stream) : driver_(driver), stream_(stream) {}
  ~Finish() { driver_.synchronize_stream(stream_); }
  Finish(const Finish&) = delete;
  Finish& operator=(const Finish&) = delete;

 private:
  const Driver& driver_;
  StreamHandle* stream_;
};

// Blocks that suit the size: whole models take large ones.
void HostTransfer::prepare(std::size_t size) {
  const std::size_t wanted = size <= kSmallBlock ? kSmallBlock : kLargeBlock;
  for (auto& block : blocks_) {
    if (block != nullptr && block->size() >= wanted) continue;
    block.reset();
    block = std::make_unique<PinnedMemory>(context_, wanted);
  }
}

void HostTransfer::upload(DeviceAddress to, const std::byte* from, std::size_t size, const CopyProgress& progress) {
  const std::scoped_lock lock(mutex_);
  const Context::Use use(*context_);
  const Driver& driver = context_->driver();
  prepare(size);
  const Finish finish(driver, stream_);
  const std::size_t block_size = blocks_.front()->size();
  std::size_t turn = 0;
  for (std::size_t done = 0; done < size; ++turn) {
    const std::size_t count = std::min(block_size, size - done);
    const std::size_t block = turn % kBlocks;
    if (turn >= kBlocks) driver.check(driver.synchronize_event(copied_[block]), "copying to the GPU");
    copy_in_parallel(blocks_[block]->data(), from + done, count);
    driver.check(driver.copy_to_device(to + done, blocks_[block]->data(), count, stream_), "copying to the GPU");
    driver.check(driver.record_event(copied_[block], stream_), "copying to the GPU");
    done += count;
    if (progress) progress(done, size);
  }
  driver.check(driver.synchronize_stream(stream_), "copying to the GPU");
}

void HostTransfer::download(std::byte* to, DeviceAddress from, std::size_t size) {
  const std::scoped_lock lock(mutex_);
  const Context::Use use(*context_);
  const Driver& driver = context_->driver();
  prepare(size);
  const Finish finish(driver, stream_);
  const std::size_t block_size = blocks_.front()->size();
  const std::size_t blocks = (size + block_size - 1) / block_size;
  for (std::size_t i = 0; i < blocks + 1; ++i) {  // block i is on its way while block i - 1 is copied out
    if (i < blocks) {
      const std::size_t count = std::min(block_size, size - i * block_size);
      driver.check(driver.copy_to_host(blocks_[i % kBlocks]->data(), from + i * block_size, count, stream_),
                   "copying from the GPU");
      driver.check(driver.record_event(copied_[i % kBlocks], stream_), "copying from the GPU");
    }
    if (i > 0) {
      const std::size_t done = (i - 1) * block_size;
      driver.check(driver.synchronize_event(copied_[(i - 1) % kBlocks]), "copying from the GPU");
      copy_in_parallel(to + done, blocks_[(i - 1) % kBlocks]->data(), std::min(block_size, size - done));
    }
  }
}

void HostTransfer::clear(DeviceAddress to, std::size_t size) {
  const std::scoped_lock lock(mutex_);
  const Context::Use use(*context_);
  const Driver& driver = context_->driver();
  driver.check(driver.fill_bytes(to, 0, size, stream_), "clearing memory of the GPU");
  driver.check(driver.synchronize_stream(stream_), "clearing memory of the GPU");
}

}  // namespace lily::device::cuda
