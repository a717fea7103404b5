// gpu/row_groups.cpp -- histogram, offsets and scatter of assignments, in kernels or on the host.
#include "gpu/row_groups.h"

#include <algorithm>
#include <vector>

namespace lily::gpu {
namespace {

std::uint32_t most_blocks(std::uint32_t assignments, std::uint32_t block_rows, std::uint32_t experts) {
  return std::min(assignments, assignments / block_rows + experts);
}

template <class T>
T* contents(device::Buffer& buffer) {
  return reinterpret_cast<T*>(buffer.contents());
}

}  // namespace

std::uint32_t expert_tile_rows(const Options& options, std::uint32_t assignments, std::uint32_t experts) {
  if (options.tile_rows != 0) return options.tile_rows;
  const std::uint32_t load = assignments / experts;
  return load < 12 ? 16 : load < 256 ? 32 : 64;
}

HostRouting::HostRouting(device::Device& device, std::uint32_t rows, const ModelConfig& config)
    : experts_(static_cast<std::uint32_t>(config.num_experts)),
      experts_per_token_(static_cast<std::uint32_t>(config.num_experts_per_tok)) {
  const auto allocate = [&](std::uint64_t words, const char* label) {
    return device.allocate(4 * words, device::BufferStorage::shared, label);
  };
  const std::uint64_t assignments = std::uint64_t{rows} * experts_per_token_;
  chosen_ = allocate(assignments, "chosen experts");
  offsets_ = allocate(experts_ + 1, "expert offsets");
  block_map_ = allocate(2 * assignments, "expert blocks");
  block_count_ = allocate(1, "expert block count");
  row_of_ = allocate(assignments, "row of place");
  place_of_ = allocate(assignments, "place of assignment");
}

RowGroups HostRouting::groups(std::uint32_t rows, std::uint32_t block_rows) const {
  RowGroups groups;
  groups.assignments = rows * experts_per_token_;
  groups.block_rows = block_rows;
  groups.max_blocks = most_blocks(groups.assignments, block_rows, experts_);
  groups.offsets = whole(*offsets_);
  groups.block_map = whole(*block_map_).part(0, 8ULL * groups.max_blocks);
  groups.block_count = whole(*block_count_);
  groups.row_of = whole(*row_of_).part(0, 4ULL * groups.assignments);
  groups.place_of = whole(*place_of_).part(0, 4ULL * groups.assignments);
  return groups;
}

void HostRouting::group(std::uint32_t rows, std::uint32_t block_rows) const {
  const std::uint32_t assignments = rows * experts_per_token_;
  const auto* chosen = contents<const std::int32_t>(*chosen_);
  auto* offsets = contents<std::uint32_t>(*offsets_);
  std::fill_n(offsets, experts_ + 1, 0U);
  for (std::uint32_t i = 0; i < assignments; ++i) ++offsets[chosen[i] + 1];
  for (std::uint32_t expert = 0; expert < experts_; ++expert) offsets[expert + 1] += offsets[expert];
  auto* block_map = contents<std::int32_t>(*block_map_);
  std::uint32_t blocks = 0;
  for (std::uint32_t expert = 0; expert < experts_; ++expert) {
    const std::uint32_t count = offsets[expert + 1] - offsets[expert];
    for (std::uint32_t first = 0; first < count; first += block_rows, ++blocks) {
      block_map[2 * blocks] = static_cast<std::int32_t>(expert);
      block_map[2 * blocks + 1] = static_cast<std::int32_t>(first);
    }
  }
  *contents<std::uint32_t>(*block_count_) = blocks;
  std::vector<std::uint32_t> next(offsets, offsets + experts_);
  for (std::uint32_t i = 0; i < assignments; ++i) {
    const std::uint32_t place = next[static_cast<std::size_t>(chosen[i])]++;
    contents<std::uint32_t>(*row_of_)[place] = i / experts_per_token_;
    contents<std::uint32_t>(*place_of_)[i] = place;
  }
}

RowGroups encode_row_groups(Encoder& encoder, const ModelConfig& config, const View& chosen, std::uint32_t rows,
                            const HostRouting* host) {
  const auto experts = static_cast<std::uint32_t>(config.num_experts);
  const auto experts_per_token = static_cast<std::uint32_t>(config.num_experts_per_tok);
  const std::uint32_t assignments = rows * experts_per_token;
  const std::uint32_t block_rows = expert_tile_rows(encoder.options(), assignments, experts);
  if (host != nullptr) {
    encoder.pass().add_host_work([host, rows, block_rows] { host->group(rows, block_rows); });
    return host->groups(rows, block_rows);
  }
  RowGroups groups;
  groups.assignments = assignments;
  groups.block_rows = block_rows;
  groups.max_blocks = most_blocks(assignments, block_rows, experts);
  groups.offsets = encoder.words(experts + 1);
  groups.block_map = encoder.words(2ULL * groups.max_blocks);
  groups.block_count = encoder.words(1);
  groups.row_of = encoder.words(assignments);
  groups.place_of = encoder.words(assignments);
  const args::GroupArgs arguments{.rows = rows,
                                  .experts = experts,
                                  .experts_per_token = experts_per_token,
                                  .block_rows = block_rows,
                                  .max_blocks = groups.max_blocks};
  const View counts = encoder.words(experts);
  encoder.launch("route_histogram", {}, {reads(0, chosen), writes(1, counts)}, 2, arguments, {experts, 1, 1},
                 args::kGroupThreads);
  encoder.launch(
      "route_offsets", {},
      {reads(0, counts), writes(1, groups.offsets), writes(2, groups.block_map), writes(3, groups.block_count)}, 4,
      arguments, {1, 1, 1}, args::kGroupThreads);
  encoder.launch("route_scatter", {},
                 {reads(0, chosen), reads(1, groups.offsets), writes(2, groups.row_of), writes(3, groups.place_of)}, 4,
                 arguments, {experts, 1, 1}, args::kGroupThreads);
  return groups;
}

}  // namespace lily::gpu
