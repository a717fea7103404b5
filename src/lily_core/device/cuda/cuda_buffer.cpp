// device/cuda/cuda_buffer.cpp -- allocation, and the two ways to the host.
#include "device/cuda/cuda_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace lily::device::cuda {

CudaBuffer::CudaBuffer(std::shared_ptr<const Context> context, std::shared_ptr<HostTransfer> transfer,
                       std::shared_ptr<std::atomic<std::uint64_t>> allocated, std::uint64_t size, BufferStorage storage,
                       std::string label)
    : context_(std::move(context)),
      transfer_(std::move(transfer)),
      allocated_(std::move(allocated)),
      size_(size),
      label_(std::move(label)) {
  const std::uint64_t room = std::max<std::uint64_t>(size, 1);
  if (storage == BufferStorage::shared) host_ = std::make_unique<PinnedMemory>(context_, room);
  const Context::Use use(*context_);
  const Driver& driver = context_->driver();
  const Result result = driver.allocate(&address_, room);
  if (result == kOutOfMemory) {
    std::size_t free = 0;
    std::size_t total = 0;
    driver.memory_info(&free, &total);
    throw Error(ErrorKind::memory_limit, "no room on the " + context_->gpu_name() + " for the buffer '" + label_ +
                                             "' of " + std::to_string(size) + " bytes: " + std::to_string(free) +
                                             " of " + std::to_string(total) + " are free");
  }
  driver.check(result, "allocating the buffer '" + label_ + "' of " + std::to_string(size) + " bytes");
  *allocated_ += size_;
}

CudaBuffer::~CudaBuffer() {
  const Context::Use use(*context_, std::nothrow);
  context_->driver().free(address_);
  *allocated_ -= size_;
}

void CudaBuffer::check_range(std::uint64_t offset, std::uint64_t size) const {
  if (offset <= size_ && size <= size_ - offset) return;
  throw Error(ErrorKind::backend, "bytes " + std::to_string(offset) + " to " + std::to_string(offset + size) + " of '" +
                                      label_ + "', which has " + std::to_string(size_));
}

std::byte* CudaBuffer::contents() {
  changed_ = true;
  return host_copy();
}

void CudaBuffer::read(std::uint64_t offset, std::span<std::byte> out) {
  check_range(offset, out.size());
  if (host_ != nullptr) {
    std::memcpy(out.data(), host_->data() + offset, out.size());
  } else {
    transfer_->download(out.data(), address_ + offset, out.size());
  }
}

void CudaBuffer::write(std::uint64_t offset, std::span<const std::byte> values) {
  check_range(offset, values.size());
  if (host_ != nullptr) {
    std::memcpy(contents() + offset, values.data(), values.size());
  } else {
    transfer_->upload(address_ + offset, values.data(), values.size());
  }
}

void CudaBuffer::clear() {
  if (host_ != nullptr) {
    std::memset(contents(), 0, size_);
  } else {
    transfer_->clear(address_, size_);
  }
}

}  // namespace lily::device::cuda
