// device/cuda/cuda_buffer.h -- memory of the GPU; a shared buffer also has a copy in pinned memory of the host.
//
// The host works on the copy. A pass brings it to the GPU first when the host has asked for it since the last pass, and
// back at the end when a kernel may have written the buffer.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "device/cuda/driver.h"
#include "device/cuda/host_transfer.h"
#include "device/device.h"

namespace lily::device::cuda {

class CudaBuffer final : public Buffer {
 public:
  // Throws Error(memory_limit).
  CudaBuffer(std::shared_ptr<const Context> context, std::shared_ptr<HostTransfer> transfer,
             std::shared_ptr<std::atomic<std::uint64_t>> allocated, std::uint64_t size, BufferStorage storage,
             std::string label);
  ~CudaBuffer() override;
  CudaBuffer(const CudaBuffer&) = delete;
  CudaBuffer& operator=(const CudaBuffer&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::byte* contents() override;
  void read(std::uint64_t offset, std::span<std::byte> out) override;
  void write(std::uint64_t offset, std::span<const std::byte> values) override;
  void clear() override;
  [[nodiscard]] const std::string& label() const override { return label_; }

  [[nodiscard]] DeviceAddress address() const { return address_; }
  // Of a shared buffer; null for private ones.
  [[nodiscard]] std::byte* host_copy() const { return host_ == nullptr ? nullptr : host_->data(); }
  // Whether the host may have changed its copy since it was last on its way to the GPU.
  [[nodiscard]] bool changed() const { return changed_; }
  void note_copied() { changed_ = false; }

 private:
  void check_range(std::uint64_t offset, std::uint64_t size) const;

  std::shared_ptr<const Context> context_;
  std::shared_ptr<HostTransfer> transfer_;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_;
  std::uint64_t size_;
  std::string label_;
  DeviceAddress address_ = 0;
  std::unique_ptr<PinnedMemory> host_;
  bool changed_ = false;
};

}  // namespace lily::device::cuda
