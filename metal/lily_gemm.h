// lily_gemm.h -- a threadgroup's part of out[m, n] = x[m] . W[n], and its tiles of x and W on their way to threadgroup
// memory. Shared by the products on simdgroup matrices (gemm.metal) and on tensor operations (gemm_tensor.metal).
//
// Along k both tiles take kTileDepth columns a step, in bf16: x in [rows of the tile, kTileStride], W dequantized in
// [kTileColumns, kTileStride]. Elements past an edge are zero. `load` brings the next step's 16-byte pieces to
// registers while the products of this step run; `store` dequantizes them into the tile.
#pragma once

#include "lily_dequantize.h"

enum GemmTileShape {
  kTileDepth = 64,                 // columns of x and W a step
  kTileStride = kTileDepth + 8,    // elements a row of a tile: 8 rows of 16 bytes then lie on 8 different sets of banks
  kTileVectors = kTileStride / 8,  // the same in uint4
};

struct GemmBlock {
  uint expert;
  uint first_row;     // of out
  uint rows;          // 0: nothing to do
  uint first_column;  // of out, a row of W
  uint columns;
};

METAL_FUNC GemmBlock dense_block(uint2 group, uint tile_rows, uint rows, uint rows_out) {
  GemmBlock block;
  block.expert = 0;
  block.first_row = group.y * tile_rows;
  block.rows = min(tile_rows, rows - block.first_row);
  block.first_column = group.x * uint(kTileColumns);
  block.columns = min(uint(kTileColumns), rows_out - block.first_column);
  return block;
}

// offsets uint [experts + 1], block_map int2 [*block_count] {expert, first row inside its group}.
METAL_FUNC GemmBlock grouped_block(uint2 group, uint tile_rows, uint rows_out, device const uint* offsets,
                                   device const int2* block_map, device const uint* block_count) {
  GemmBlock block;
  block.expert = 0;
  block.first_row = 0;
  block.rows = 0;
  block.first_column = group.x * uint(kTileColumns);
  block.columns = min(uint(kTileColumns), rows_out - block.first_column);
  if (group.y >= *block_count) return block;
  const int2 entry = block_map[group.y];
  block.expert = uint(entry.x);
  block.first_row = offsets[block.expert] + uint(entry.y);
  block.rows = min(tile_rows, offsets[block.expert + 1] - block.first_row);
  return block;
}

// Words first to first + 3 of a row of `count` words. Rows of affine matrices are whole vectors, those of plain ones
// may be ragged.
METAL_FUNC uint4 load_words(device const uint* row, uint first, uint count, bool ragged) {
  if (!ragged) return first < count ? *(device const uint4*)(row + first) : uint4(0);
  uint4 words = uint4(0);
  UNROLL for (uint i = 0; i < 4; i++) {
    if (first + i < count) words[i] = row[first + i];
  }
  return words;
}

// x, bf16 [rows, columns]: this thread's pieces are 8 columns of every 16th row.
template <int ROWS>
struct RowTile {
  device const uint* x;
  uint words;             // a row
  bool ragged;
  uint row;               // of the tile, of this thread's first piece
  uint column;            // in vectors, of all its pieces
  uint rows;              // of the tile
  uint start[ROWS / 16];  // each piece's row of x, in words
  uint4 held[ROWS / 16];

  // row_of: the row of x of each row of out, read when `gather`.
  METAL_FUNC void begin(device const bfloat* x_rows, GemmBlock block, uint columns, bool is_ragged, bool gather,
                        device const uint* row_of, uint thread_index) {
    x = (device const uint*)x_rows;
    words = columns / 2;
    ragged = is_ragged;
    row = thread_index / 8;
    column = thread_index % 8;
    rows = block.rows;
    UNROLL for (int j = 0; j < ROWS / 16; j++) {
      const uint place = block.first_row + min(row + 16 * j, rows - 1);
      start[j] = (gather ? row_of[place] : place) * words;
    }
  }
  METAL_FUNC void load(uint k) {
    UNROLL for (int j = 0; j < ROWS / 16; j++) {
      held[j] = row + 16 * j < rows ? load_words(x + start[j], k / 2 + 4 * column, words, ragged) : uint4(0);
    }
  }
  METAL_FUNC void store(threadgroup uint4* tile) {
    UNROLL for (int j = 0; j < ROWS / 16; j++) tile[(row + 16 * j) * kTileVectors + column] = held[j];
  }
};

// W: this thread's pieces are 16 bytes, 128 / BITS columns, of every STEPth row.
template <int BITS>
struct WeightTile {
  enum { kLoads = BITS / 4, kPieces = BITS / 2, kStep = int(kTileThreads) / kPieces, kParts = 16 / BITS };
  device const uint* codes;
  device const bfloat* scales;
  device const bfloat* biases;
  uint words;       // a row
  uint groups;      // a row
  uint group_size;
  uint row;         // of the tile, of this thread's first piece
  uint piece;       // of a row's kPieces
  uint rows;        // of the tile
  uint4 held[kLoads];
  float scale[kLoads];
  float bias[kLoads];

  METAL_FUNC void begin(device const uint* matrix, device const bfloat* matrix_scales,
                        device const bfloat* matrix_biases, GemmBlock block, constant GemmArgs& args, uint group,
                        uint thread_index) {
    words = args.columns * BITS / 32;
    groups = args.columns / group;
    group_size = group;
    row = thread_index / kPieces;
    piece = thread_index % kPieces;
    rows = block.columns;
    const ulong first = block.first_column;
    codes = matrix + ulong(block.expert) * args.expert_words + first * words;
    const ulong first_scale = ulong(block.expert) * args.expert_scales + first * groups;
    scales = matrix_scales + first_scale;
    biases = matrix_biases + first_scale;
  }
  METAL_FUNC void load(uint k) {
    const uint word = k * BITS / 32 + 4 * piece;
    const uint group = (k + piece * (128 / BITS)) / group_size;
    UNROLL for (int j = 0; j < kLoads; j++) {
      const uint at = row + kStep * j;
      held[j] = uint4(0);
      scale[j] = 0.0f;
      bias[j] = 0.0f;
      if (at < rows) {
        held[j] = load_words(codes + at * words, word, words, BITS == 16 && words % 4 != 0);
        if (BITS != 16 && word < words) {
          scale[j] = float(scales[at * groups + group]);
          bias[j] = float(biases[at * groups + group]);
        }
      }
    }
  }
  METAL_FUNC void store(threadgroup uint4* tile) {
    UNROLL for (int j = 0; j < kLoads; j++) {
      threadgroup uint4* to = tile + (row + kStep * j) * kTileVectors + piece * kParts;
      UNROLL for (int part = 0; part < kParts; part++) {
        to[part] = dequantize_eight<BITS>(held[j], part, scale[j], bias[j]);
      }
    }
  }
};
