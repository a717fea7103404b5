// cpu/matmul/tile_config.h -- how AMX tiles are shaped.
#pragma once

#include <cstdint>

#include "cpu/matmul/vectors_avx512.h"

namespace lily::cpu {
namespace {

// What ldtilecfg reads.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void shape(int tile, std::int64_t row_count, std::int64_t bytes) {
    rows[tile] = static_cast<std::uint8_t>(row_count);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};

}  // namespace
}  // namespace lily::cpu
