// gpu/weight_placer.h -- finds a place on the device for every weight: in a wrapped file, or copied into an arena.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gpu/weights.h"

namespace lily::gpu {

// Visits all weights twice in the same order: first to measure what must be copied, then, with the arenas allocated, to
// copy it.
class WeightPlacer {
 public:
  // `progress` outlives this: told of the regions that the device copies.
  WeightPlacer(device::Device& device, std::span<const HostRegion> regions, const CopyProgress& progress);

  [[nodiscard]] DeviceMatrix matrix(const std::string& name, const Matrix& matrix);
  [[nodiscard]] ExpertMatrices experts(const std::string& name, const std::vector<Matrix>& matrices);
  // Values that the host has made.
  [[nodiscard]] View values(std::span<const std::byte> bytes);
  [[nodiscard]] View vector(const std::vector<float>& values) { return this->values(std::as_bytes(std::span(values))); }

  // Ends the measuring: allocates and lets the second round begin.
  void begin_placing();
  [[nodiscard]] const CopiedWeights& copied() const { return copied_; }
  [[nodiscard]] std::vector<std::shared_ptr<device::Buffer>> take_buffers();

 private:
  // Room in an arena; its buffer is null while measuring.
  [[nodiscard]] View make_room(std::uint64_t bytes, bool is_copy);
  // Blocks of equal size at equal distances.
  struct Blocks {
    View view;
    std::uint64_t stride = 0;  // bytes
  };
  // Where they lie in the mapped files; nothing if their addresses do not suit the kernels.
  [[nodiscard]] std::optional<Blocks> find_in_place(const std::vector<const std::byte*>& blocks, std::uint64_t bytes,
                                                    std::uint64_t alignment);
  [[nodiscard]] Blocks copy_blocks(const std::vector<const std::byte*>& blocks, std::uint64_t bytes,
                                   std::uint64_t alignment);
  [[nodiscard]] Blocks copy_scales(const std::vector<const std::byte*>& blocks, std::uint64_t count, ElementType type);
  void place_scales(const std::vector<Matrix>& matrices, ExpertMatrices& result);

  [[nodiscard]] std::shared_ptr<device::Buffer> wrap_region(const HostRegion& region);

  device::Device& device_;
  const CopyProgress& progress_;
  std::vector<HostRegion> regions_;
  std::vector<bool> region_is_used_;                             // in place: found while measuring
  std::uint64_t wrapped_ = 0;                                    // bytes of regions
  std::vector<std::shared_ptr<device::Buffer>> region_buffers_;  // null until something is used in place
  bool placing_ = false;
  std::vector<std::uint64_t> arena_sizes_;
  std::vector<std::shared_ptr<device::Buffer>> arenas_;
  std::size_t arena_ = 0;
  std::uint64_t used_ = 0;
  CopiedWeights copied_;
};

}  // namespace lily::gpu
