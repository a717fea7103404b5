// gpu/arena.h -- scratch memory of a pass: pieces that are never in use at the same time share bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "gpu/pass.h"

namespace lily::gpu {

struct ScratchLayout {
  std::vector<std::uint64_t> offsets;  // of each piece
  std::uint64_t bytes = 0;
  std::uint64_t bytes_unshared = 0;
};

// Places every piece of scratch memory that the pass uses. Two pieces share bytes only when the last stage of one is
// before the first of the other: a barrier lies between them already, so sharing never adds a stage.
[[nodiscard]] ScratchLayout layout_scratch(const Pass& pass, std::span<const std::uint32_t> stage_of);

// The buffer behind the scratch memory of all passes of a device, which run one after the other.
class Arena {
 public:
  explicit Arena(device::Device& device) : device_(device) {}
  // A buffer of at least `bytes`. An earlier one lives on while a pass holds it.
  [[nodiscard]] std::shared_ptr<device::Buffer> reserve(std::uint64_t bytes);
  [[nodiscard]] const std::shared_ptr<device::Buffer>& buffer() const { return buffer_; }

 private:
  device::Device& device_;
  std::shared_ptr<device::Buffer> buffer_;
};

}  // namespace lily::gpu
