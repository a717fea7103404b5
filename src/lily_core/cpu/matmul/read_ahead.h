// cpu/matmul/read_ahead.h -- what to prefetch while a block of weight rows is read: the bytes some KB ahead, and near
// the end of the block the beginning of what the caller reads next.
//
// The processor's own prefetchers stop at the borders of 4 KB pages and know nothing of the next matrix.
#pragma once

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

// Like the members of Matrix, but internal to this translation unit.
inline std::int64_t bytes_of_row(const Matrix& matrix) {
  if (matrix.format == MatrixFormat::plain) return matrix.columns * element_size(matrix.element_type);
  return matrix.format == MatrixFormat::affine4 ? matrix.columns / 2 : matrix.columns;
}
inline std::int64_t bytes_of_row_scales(const Matrix& matrix) {
  if (matrix.format == MatrixFormat::plain) return 0;
  return matrix.columns / matrix.group_size * element_size(matrix.element_type);
}

inline constexpr std::int64_t kAheadBytes = 16384;  // of codes, between what is fetched and what is used

// Into the second-level cache, which can have more reads under way than the first.
inline void fetch_ahead(const std::byte* p) { __builtin_prefetch(p, 0, 2); }

// Fetches the scales and biases of the tile at a row.
inline void fetch_tile_scales(const Matrix& matrix, std::int64_t row) {
  const std::int64_t stride = bytes_of_row_scales(matrix);
  for (std::int64_t i = 0; i < kTileRows * stride; i += 64) {
    fetch_ahead(matrix.scales + row * stride + i);
    fetch_ahead(matrix.biases + row * stride + i);
  }
}

// Fetches the scales and biases of a tile of the block or, behind its end, of what is read next. Returns where its
// codes begin, for unpack_tile to fetch; nullptr: nothing is known.
inline const std::byte* fetch_tile(const MatmulArgs& args, std::int64_t row) {
  const bool inside = row < args.row_end;
  const Matrix* matrix = inside ? args.weight : args.next_weight;
  if (matrix == nullptr) return nullptr;
  const std::int64_t at = inside ? row : args.next_row + row - args.row_end;
  fetch_tile_scales(*matrix, at);
  return matrix->weight + at * bytes_of_row(*matrix);
}

class ReadAhead {
 public:
  explicit ReadAhead(const MatmulArgs& args)
      : weight_(*args.weight),
        end_(args.row_end),
        next_(args.next_weight != nullptr ? *args.next_weight : weight_),
        codes_end_(weight_.weight + end_ * bytes_of_row(weight_)),
        next_row_(args.next_weight != nullptr ? args.next_row : args.row_begin),
        next_codes_(next_.weight + next_row_ * bytes_of_row(next_)) {
    const std::int64_t tile_bytes = kRowTile * bytes_of_row(weight_);
    rows_ahead_ = (kAheadBytes + tile_bytes - 1) / tile_bytes * kRowTile;
  }

  // Address of the codes that follow those at p by kAheadBytes.
  [[nodiscard]] const std::byte* codes(const std::byte* p) const {
    const std::int64_t over = p + kAheadBytes - codes_end_;
    return over < 0 ? p + kAheadBytes : next_codes_ + over;
  }

  // Fetches the scales and biases of a tile, as far ahead of the tile at `row`.
  void fetch_scales(std::int64_t row) const {
    const std::int64_t over = row + rows_ahead_ - end_;
    fetch_tile_scales(over < 0 ? weight_ : next_, over < 0 ? row + rows_ahead_ : next_row_ + over);
  }

 private:
  const Matrix& weight_;
  std::int64_t end_;  // row behind the block
  const Matrix& next_;
  const std::byte* codes_end_;
  std::int64_t next_row_;
  const std::byte* next_codes_;
  std::int64_t rows_ahead_;  // at least kAheadBytes of codes
};

}  // namespace
}  // namespace lily::cpu
