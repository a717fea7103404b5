// device/cuda/host_transfer.h -- copies between host and device memory, through pinned memory, beside running kernels.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

#include "device/cuda/driver.h"
#include "device/device.h"

namespace lily::device::cuda {

// Pinned memory of the host.
class PinnedMemory {
 public:
  // Throws Error(memory_limit).
  PinnedMemory(std::shared_ptr<const Context> context, std::size_t size);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::shared_ptr<const Context> context_;
  std::byte* data_ = nullptr;
  std::size_t size_;
};

class HostTransfer {
 public:
  // Throws Error.
  explicit HostTransfer(std::shared_ptr<const Context> context);
  ~HostTransfer();
  HostTransfer(const HostTransfer&) = delete;
  HostTransfer& operator=(const HostTransfer&) = delete;

  // Both are complete when they return, and do not wait for kernels. Throw Error(backend).
  void upload(DeviceAddress to, const std::byte* from, std::size_t size, const CopyProgress& progress = {});
  void download(std::byte* to, DeviceAddress from, std::size_t size);
  void clear(DeviceAddress to, std::size_t size);

 private:
  static constexpr std::size_t kBlocks = 2;

  class Finish;

  void prepare(std::size_t size);
  void release();

  std::shared_ptr<const Context> context_;
  std::mutex mutex_;
  StreamHandle* stream_ = nullptr;
  std::array<EventHandle*, kBlocks> copied_ = {};  // a block's latest copy
  std::array<std::unique_ptr<PinnedMemory>, kBlocks> blocks_;
};

}  // namespace lily::device::cuda
