// attention_prefill.metal -- causal flash attention of a chunk of tokens over the cache, as matrix products of tiles.
//
// query bf16 [rows, heads, head_dim] (scaled), keys and values bf16 [kv_heads, capacity, head_dim], projected query
// bf16 [rows, heads, 2, head_dim] (for the gate), out bf16 [rows, heads, head_dim]. A threadgroup has kRows rows of one
// head, a simdgroup a quarter of them, and goes through the positions in blocks. Scores, weights and sums stay in a
// simdgroup's registers: scores = q k^T one chunk of dimensions after another, the online softmax, then sums = factors
// sums + weights v, one chunk of columns after another. Chunks of keys and values alternate between two tiles: one is
// filled while the other may still be read, and the next chunk is on its way to registers.
#include "lily_tile.h"

constant int kHeadDim [[function_constant(kHeadDimIndex)]];

#if defined(LILY_WIDE_ATTENTION)
constant constexpr int kRows = kWideAttentionRows;
#else
constant constexpr int kRows = kAttentionRows;
#endif
constant constexpr int kOwnRows = kRows / 4;     // of a simdgroup,
constant constexpr int kPieces = kOwnRows / 8;   // in fragments
constant constexpr int kBlock = 32;              // positions
constant constexpr int kChunk = 64;              // dimensions
constant constexpr int kMaxChunks = 4;
// Elements from one row of a tile to the next.
constant constexpr int kQueryStride = kChunk * kMaxChunks + 8;
constant constexpr int kCacheStride = kChunk + 8;
constant constexpr int kCacheTile = kBlock * kCacheStride;
static_assert(kAttentionThreads == 128 && kRows % 32 == 0, "four simdgroups with whole fragments");
static_assert(kBlock * kChunk == 16 * kAttentionThreads, "a thread moves two uint4s a chunk");

using Scores = TileFragments<bfloat, kPieces, kBlock / 8, kChunk>;

// The sums of a simdgroup's rows over positions, [kOwnRows, head_dim], in chunks of columns.
struct ValueSums {
  TileFragments<bfloat, kPieces, kChunk / 8, kBlock> chunk[kMaxChunks];
};

// Of the rows that this lane has elements of: the maximum so far, and the sum of the lane's own exponentials.
struct RowStates {
  float maximum[kPieces];
  float sum[kPieces];
};

// What a thread moves of a chunk: 8 elements of each of two positions.
struct Moved {
  uint4 first;
  uint4 second;
};

// 8 dimensions of a position, or zeros where there are none.
METAL_FUNC uint4 load_eight(device const bfloat* cache, int position, int limit, int dimension) {
  const bool is_inside = position < limit && dimension < kHeadDim;
  return is_inside ? *(device const uint4*)(cache + ulong(position) * kHeadDim + dimension) : uint4(0);
}

// Threads side by side read a position.
METAL_FUNC Moved load_chunk(device const bfloat* cache, int block, int chunk, int limit, int thread_index) {
  const int position = block + thread_index / 8;
  const int dimension = chunk * kChunk + thread_index % 8 * 8;
  return {load_eight(cache, position, limit, dimension), load_eight(cache, position + kBlock / 2, limit, dimension)};
}

// [kBlock, kChunk]
METAL_FUNC void store_chunk(threadgroup bfloat* tile, Moved moved, int thread_index) {
  threadgroup bfloat* at = tile + thread_index / 8 * kCacheStride + thread_index % 8 * 8;
  *(threadgroup uint4*)at = moved.first;
  *(threadgroup uint4*)(at + kBlock / 2 * kCacheStride) = moved.second;
}

// [kRows, all chunks]; zeros past the last row and dimension.
METAL_FUNC void load_queries(threadgroup bfloat* tile, device const bfloat* query, int rows, int row_stride,
                             int thread_index) {
  const int words = (kHeadDim + kChunk - 1) / kChunk * kChunk / 8;
  for (int i = thread_index; i < kRows * words; i += kAttentionThreads) {
    const int row = i / words;
    const int dimension = i % words * 8;
    const bool is_inside = row < rows && dimension < kHeadDim;
    *(threadgroup uint4*)(tile + row * kQueryStride + dimension) =
        is_inside ? *(device const uint4*)(query + row * row_stride + dimension) : uint4(0);
  }
}

// scores [kOwnRows, kBlock] = this simdgroup's queries times the keys of a block. `next` holds the first chunk of the
// keys, and at the end that of the values.
METAL_FUNC void multiply_keys(thread Scores& scores, threadgroup const bfloat* queries, threadgroup bfloat* tiles,
                              thread Moved& next, device const bfloat* keys, device const bfloat* values, int block,
                              int limit, uint thread_index) {
  const int chunks = (kHeadDim + kChunk - 1) / kChunk;
  scores.clear();
  for (int chunk = 0; chunk < chunks; chunk++) {
    threadgroup bfloat* tile = tiles + chunk % 2 * kCacheTile;
    store_chunk(tile, next, int(thread_index));
    threadgroup_barrier(mem_flags::mem_threadgroup);  // also after the products of the chunk before last
    next = chunk + 1 < chunks ? load_chunk(keys, block, chunk + 1, limit, int(thread_index))
                              : load_chunk(values, block, 0, limit, int(thread_index));
    scores.multiply_accumulate(queries + chunk * kChunk, kQueryStride, tile, kCacheStride);
  }
}

// Turns scores into weights exp(score - maximum), rounded to bfloat. Of this lane's first row, columns from `visible`
// on, counted from the lane's first, are masked. `factors` are what to multiply the rows' sums so far by. Position 0 is
// never masked: the maximum is finite from the first block on.
METAL_FUNC void weigh_block(thread Scores& scores, thread RowStates& states, thread float* factors, int visible) {
  UNROLL for (int i = 0; i < kPieces; i++) {
    float largest = states.maximum[i];
    UNROLL for (int j = 0; j < kBlock / 8; j++) {
      UNROLL for (int e = 0; e < 2; e++) {
        const float score = 8 * j + e < visible + 8 * i ? scores.element(i, j, e) : -INFINITY;
        scores.set_element(i, j, e, score);
        largest = max(largest, score);
      }
    }
    largest = tile_row_maximum(largest);
    float sum = 0.0f;
    UNROLL for (int j = 0; j < kBlock / 8; j++) {
      UNROLL for (int e = 0; e < 2; e++) {
        const float weight = float(bfloat(precise::exp(scores.element(i, j, e) - largest)));
        scores.set_element(i, j, e, weight);
        sum += weight;  // as rounded, so that the weights add up to one
      }
    }
    factors[i] = precise::exp(states.maximum[i] - largest);
    states.sum[i] = fma(states.sum[i], factors[i], sum);
    states.maximum[i] = largest;
  }
}

// sums = factors sums + weights times the values of a block. `next` holds the first chunk of the values, and at the end
// that of the next block's keys.
METAL_FUNC void add_values(thread ValueSums& sums, thread Scores& weights, thread const float* factors,
                           threadgroup bfloat* tiles, thread Moved& next, device const bfloat* keys,
                           device const bfloat* values, int block, int limit, uint thread_index) {
  const int chunks = (kHeadDim + kChunk - 1) / kChunk;
  bool are_ones = true;
  UNROLL for (int i = 0; i < kPieces; i++) are_ones = are_ones && factors[i] == 1.0f;
  const bool has_new_maximum = !simd_all(are_ones);
  UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) {
    if (chunk * kChunk < kHeadDim) {
      threadgroup bfloat* tile = tiles + (chunks + chunk) % 2 * kCacheTile;
      store_chunk(tile, next, int(thread_index));
      threadgroup_barrier(mem_flags::mem_threadgroup);
      next = (chunk + 1) * kChunk < kHeadDim ? load_chunk(values, block, chunk + 1, limit, int(thread_index))
                                             : load_chunk(keys, block + kBlock, 0, limit, int(thread_index));
      if (has_new_maximum) {
        UNROLL for (int i = 0; i < kPieces; i++) sums.chunk[chunk].scale(i, factors[i]);
      }
      sums.chunk[chunk].add_weighted(weights, tile, kCacheStride);
    }
  }
}

// Two dimensions of a row: sums / sum, times the sigmoid of the gate.
METAL_FUNC void write_gated(device bfloat* out, device const bfloat* gate, float first, float second, float inverse) {
  const bfloat2 opening = *(device const bfloat2*)gate;
  bfloat2 gated;
  gated.x = bfloat(first * inverse * sigmoid(float(opening.x)));
  gated.y = bfloat(second * inverse * sigmoid(float(opening.y)));
  *(device bfloat2*)out = gated;
}

// This simdgroup's rows; `out` and `gate` are those of its first row and lane's first column, and `rows` the rows from
// the lane's first on that exist.
METAL_FUNC void write_rows(device bfloat* out, device const bfloat* gate, thread ValueSums& sums,
                           thread RowStates& states, int rows, int row_stride, int column) {
  UNROLL for (int i = 0; i < kPieces; i++) {
    const float inverse = 1.0f / tile_row_sum(states.sum[i]);
    UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) {
      UNROLL for (int j = 0; j < kChunk / 8; j++) {
        const int dimension = chunk * kChunk + 8 * j;
        if (8 * i < rows && dimension + column < kHeadDim) {
          write_gated(out + 8 * i * row_stride + dimension, gate + 16 * i * row_stride + dimension,
                      sums.chunk[chunk].element(i, j, 0), sums.chunk[chunk].element(i, j, 1), inverse);
        }
      }
    }
  }
}

[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention_prefill(
    device const bfloat* query [[buffer(0)]],
    device const bfloat* keys [[buffer(1)]],
    device const bfloat* values [[buffer(2)]],
    device const bfloat* projected_query [[buffer(3)]],
    device const int* position [[buffer(4)]],  // of row 0
    device bfloat* out [[buffer(5)]],
    constant AttentionArgs& args [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint4 query_memory[kRows * kQueryStride / 8];
  threadgroup uint4 cache_memory[2 * kCacheTile / 8];
  threadgroup bfloat* queries = (threadgroup bfloat*)query_memory;
  threadgroup bfloat* tiles = (threadgroup bfloat*)cache_memory;

  const int first_row = int((args.rows + kRows - 1) / kRows - 1 - group.x) * kRows;  // most positions first
  const int rows = min(int(args.rows) - first_row, kRows);
  const int first_position = *position + first_row;
  const int limit = first_position + rows;  // positions that the last row sees
  const ulong head = ulong(first_row) * args.heads + group.y;
  const ulong cache = ulong(group.y * args.kv_heads / args.heads) * args.capacity * kHeadDim;
  keys += cache;
  values += cache;
  const int row_stride = int(args.heads) * kHeadDim;
  load_queries(queries, query + head * kHeadDim, rows, row_stride, int(thread_index));

  const int own_row = int(simdgroup) * kOwnRows;
  const int row = own_row + tile_fragment_row(lane);
  const int column = tile_fragment_column(lane);
  RowStates states;
  UNROLL for (int i = 0; i < kPieces; i++) {
    states.maximum[i] = -INFINITY;
    states.sum[i] = 0.0f;
  }
  ValueSums sums;
  UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) sums.chunk[chunk].clear();
  Moved next = load_chunk(keys, 0, 0, limit, int(thread_index));
  for (int block = 0; block < limit; block += kBlock) {
    Scores scores;
    float factors[kPieces];
    multiply_keys(scores, queries + own_row * kQueryStride, tiles, next, keys, values, block, limit, thread_index);
    weigh_block(scores, states, factors, first_position + row + 1 - block - column);
    add_values(sums, scores, factors, tiles, next, keys, values, block, limit, thread_index);
  }
  const ulong own_head = head + ulong(row) * args.heads;
  write_rows(out + own_head * kHeadDim + column, projected_query + (2 * own_head + 1) * kHeadDim + column, sums, states,
             rows - row, row_stride, column);
}
