// gpu/row_groups.h -- grouping the rows of a prompt by expert (P2): on the device, or on the CPU when that is switched
// off.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/encoder.h"
#include "weights/config.h"

namespace lily::gpu {

// Rows of an expert's tile for this many assignments (P3).
[[nodiscard]] std::uint32_t expert_tile_rows(const Options& options, std::uint32_t assignments, std::uint32_t experts);

// Memory that host and device share, through which the CPU groups rows. Lives as long as the pass.
class HostRouting {
 public:
  HostRouting(device::Device& device, std::uint32_t rows, const ModelConfig& config);
  [[nodiscard]] View chosen() const { return whole(*chosen_); }
  // Where the groups of `rows` rows will be.
  [[nodiscard]] RowGroups groups(std::uint32_t rows, std::uint32_t block_rows) const;
  // Reads the chosen experts of `rows` rows and writes the groups.
  void group(std::uint32_t rows, std::uint32_t block_rows) const;

 private:
  std::uint32_t experts_;
  std::uint32_t experts_per_token_;
  std::shared_ptr<device::Buffer> chosen_, offsets_, block_map_, block_count_, row_of_, place_of_;
};

// Groups the chosen experts, int [rows, experts_per_token]. `host` is null where the device does it.
[[nodiscard]] RowGroups encode_row_groups(Encoder& encoder, const ModelConfig& config, const View& chosen,
                                          std::uint32_t rows, const HostRouting* host);

}  // namespace lily::gpu
