// device/metal/buffer.h -- memory that host and GPU share. Apple's GPUs have no other: private buffers differ only in
// that nobody relies on contents().
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <string>

#include "device/device.h"
#include "device/metal/memory_budget.h"
#include "device/metal/residency.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class MetalBuffer final : public Buffer {
 public:
  struct Owner {
    std::shared_ptr<MemoryBudget> budget;
    std::shared_ptr<Residency> residency;
  };

  // Allocates. Throws Error(memory_limit).
  MetalBuffer(id<MTLDevice> device, const Owner& owner, std::uint64_t size, BufferStorage storage, std::string label);
  // Uses `data` in place when it starts at a page and Metal takes it; else it is copied, and counts as allocated.
  // Throws Error(memory_limit).
  MetalBuffer(id<MTLDevice> device, const Owner& owner, const std::byte* data, std::uint64_t size, std::string label);
  ~MetalBuffer() override;
  MetalBuffer(const MetalBuffer&) = delete;
  MetalBuffer& operator=(const MetalBuffer&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::byte* _Nullable contents() override;
  void read(std::uint64_t offset, std::span<std::byte> out) override;
  void write(std::uint64_t offset, std::span<const std::byte> values) override;
  void clear() override;
  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] id<MTLBuffer> metal() const { return buffer_; }

 private:
  void keep_resident();

  std::uint64_t size_;
  BufferStorage storage_;
  ResidencyGroup group_;
  std::string label_;
  std::shared_ptr<Residency> residency_;
  std::unique_ptr<BudgetShare> share_;
  id<MTLBuffer> buffer_;
};

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
