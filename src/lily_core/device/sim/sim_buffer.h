// device/sim/sim_buffer.h -- memory of the sim device, its end against an unmapped page.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "device/device.h"
#include "device/sim/kernel_library.h"

namespace lily::device::sim {

class SimBuffer final : public Buffer {
 public:
  // Allocates; `poison` fills with NaN patterns. Throws Error(memory_limit).
  SimBuffer(std::shared_ptr<KernelLibrary> library, std::shared_ptr<std::atomic<std::uint64_t>> allocated,
            std::uint64_t size, BufferStorage storage, bool poison, std::string label);
  // Wraps memory of the host.
  SimBuffer(std::shared_ptr<KernelLibrary> library, const std::byte* data, std::uint64_t size, std::string label);
  ~SimBuffer() override;
  SimBuffer(const SimBuffer&) = delete;
  SimBuffer& operator=(const SimBuffer&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return memory_.size; }
  [[nodiscard]] std::byte* contents() override;
  void read(std::uint64_t offset, std::span<std::byte> out) override;
  void write(std::uint64_t offset, std::span<const std::byte> values) override;
  void clear() override;
  [[nodiscard]] const std::string& label() const override { return label_; }
  [[nodiscard]] lily_sim::Memory& memory() { return memory_; }
  [[nodiscard]] bool read_only() const { return mapping_ == nullptr; }

 private:
  std::shared_ptr<KernelLibrary> library_;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_;
  std::string label_;
  BufferStorage storage_ = BufferStorage::shared;
  void* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  lily_sim::Memory memory_ = {};
};

}  // namespace lily::device::sim
