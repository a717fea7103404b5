// attention_prefill.metal -- causal flash attention of a chunk of tokens over the cache, as matrix products of tiles.
//
// query bf16 [rows, heads, head_dim] (scaled), keys and values bf16 [kv_heads, capacity, head_dim], projected query
// bf16 [rows, heads, 2, head_dim] (for the gate), out bf16 [rows, heads, head_dim]. A threadgroup has kAttentionRows
// rows of one head and goes through the positions in blocks: scores = q k^T a chunk of dimensions after the other, the
// online softmax (four threads a row), then sums = factor sums + weights v, a chunk of columns after the other. Chunks
// of keys and of values, the latter transposed, take turns in one tile; the next one comes to registers during each
// product.
#include "lily_tile.h"

constant int kHeadDim [[function_constant(kHeadDimIndex)]];

constant constexpr int kRows = kAttentionRows;
constant constexpr int kBlock = 32;  // positions
constant constexpr int kChunk = 64;  // dimensions
constant constexpr int kMaxChunks = 4;
// Elements from one row of a tile to the next.
constant constexpr int kQueryStride = kChunk * kMaxChunks + 8;
constant constexpr int kKeyStride = kChunk + 8;
constant constexpr int kValueStride = kBlock + 8;
constant constexpr int kWeightStride = kBlock + 8;
constant constexpr int kScoreStride = kBlock + 4;
constant constexpr int kOutStride = kChunk + 4;
static_assert(kRows * 4 == kAttentionThreads, "four threads a row");
static_assert(kBlock * kChunk == 16 * kAttentionThreads, "a thread moves two uint4s a chunk");

// What a thread moves of a chunk: twice 8 elements.
struct Moved {
  uint4 first;
  uint4 second;
};

// 8 dimensions of a position, or zeros where there are none.
METAL_FUNC uint4 load_eight(device const bfloat* cache, int position, int limit, int dimension) {
  const bool is_inside = position < limit && dimension < kHeadDim;
  return is_inside ? *(device const uint4*)(cache + ulong(position) * kHeadDim + dimension) : uint4(0);
}

// Keys: threads side by side read a position.
METAL_FUNC Moved load_keys(device const bfloat* keys, int block, int chunk, int limit, int thread_index) {
  const int position = block + thread_index / 8;
  const int dimension = chunk * kChunk + thread_index % 8 * 8;
  return {load_eight(keys, position, limit, dimension), load_eight(keys, position + kBlock / 2, limit, dimension)};
}

// [kBlock, kChunk]
METAL_FUNC void store_keys(threadgroup bfloat* tile, Moved keys, int thread_index) {
  threadgroup bfloat* at = tile + thread_index / 8 * kKeyStride + thread_index % 8 * 8;
  *(threadgroup uint4*)at = keys.first;
  *(threadgroup uint4*)(at + kBlock / 2 * kKeyStride) = keys.second;
}

// Values: a thread has 8 dimensions of two neighbouring positions, which lie in one word of the transposed tile.
METAL_FUNC Moved load_values(device const bfloat* values, int block, int chunk, int limit, int thread_index) {
  const int position = block + thread_index % (kBlock / 2) * 2;
  const int dimension = chunk * kChunk + thread_index / (kBlock / 2) * 8;
  return {load_eight(values, position, limit, dimension), load_eight(values, position + 1, limit, dimension)};
}

// [kChunk, kBlock]
METAL_FUNC void store_values(threadgroup bfloat* tile, Moved values, int thread_index) {
  threadgroup bfloat* at = tile + thread_index / (kBlock / 2) * 8 * kValueStride + thread_index % (kBlock / 2) * 2;
  UNROLL for (int i = 0; i < 4; i++) {
    const uint even = (values.first[i] & 0xFFFFu) | values.second[i] << 16;
    const uint odd = values.first[i] >> 16 | (values.second[i] & 0xFFFF0000u);
    *(threadgroup uint*)(at + 2 * i * kValueStride) = even;
    *(threadgroup uint*)(at + (2 * i + 1) * kValueStride) = odd;
  }
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

// Maximum and sum of the exponentials of a row so far; its four threads have the same.
struct RowState {
  float maximum;
  float sum;
};

// The weights exp(score - maximum) of this thread's quarter of a row; columns from `visible` on are masked. Returns
// what to multiply the sums so far by. Position 0 is never masked: the maximum is finite from the first block on.
METAL_FUNC float weigh_block(thread RowState& state, threadgroup const float* scores, threadgroup bfloat* weights,
                             int visible) {
  float values[kBlock / 4];
  float largest = state.maximum;
  UNROLL for (int i = 0; i < kBlock / 4; i += 4) {
    const float4 loaded = *(threadgroup const float4*)(scores + i);
    UNROLL for (int j = 0; j < 4; j++) {
      values[i + j] = i + j < visible ? loaded[j] : -INFINITY;
      largest = max(largest, values[i + j]);
    }
  }
  largest = max(largest, simd_shuffle_xor(largest, 1));
  largest = max(largest, simd_shuffle_xor(largest, 2));
  const float factor = precise::exp(state.maximum - largest);
  float sum = 0.0f;
  UNROLL for (int i = 0; i < kBlock / 4; i += 4) {
    bfloat4 rounded;
    UNROLL for (int j = 0; j < 4; j++) {
      rounded[j] = bfloat(precise::exp(values[i + j] - largest));
      sum += float(rounded[j]);  // as rounded, so that the weights add up to one
    }
    *(threadgroup bfloat4*)(weights + i) = rounded;
  }
  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 2);
  state.sum = fma(state.sum, factor, sum);
  state.maximum = largest;
  return factor;
}

// 8 dimensions of a row: sums / sum, times the sigmoid of the gate.
METAL_FUNC void write_gated(device bfloat* out, threadgroup const float* sums, device const bfloat* gate,
                            float inverse) {
  UNROLL for (int i = 0; i < 8; i += 4) {
    const float4 value = *(threadgroup const float4*)(sums + i);
    const bfloat4 opening = *(device const bfloat4*)(gate + i);
    bfloat4 gated;
    UNROLL for (int j = 0; j < 4; j++) gated[j] = bfloat(value[j] * inverse * sigmoid(float(opening[j])));
    *(device bfloat4*)(out + i) = gated;
  }
}

// The sums of a head's rows over positions, [kRows, head_dim], a tile for each chunk of columns.
struct ValueSums {
  Tile<bfloat, kRows, kChunk, kBlock> chunk[kMaxChunks];
};

// scores [kRows, kBlock] = queries times the keys of a block. `next` holds the first chunk of the keys, and at the end
// that of the values.
METAL_FUNC void multiply_keys(threadgroup float* scores, threadgroup const bfloat* queries, threadgroup bfloat* tile,
                              thread Moved& next, device const bfloat* keys, device const bfloat* values, int block,
                              int limit, uint thread_index, uint simdgroup, uint lane) {
  const int chunks = (kHeadDim + kChunk - 1) / kChunk;
  Tile<bfloat, kRows, kBlock, kChunk> product;
  product.clear();
  for (int chunk = 0; chunk < chunks; chunk++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    store_keys(tile, next, int(thread_index));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    next = chunk + 1 < chunks ? load_keys(keys, block, chunk + 1, limit, int(thread_index))
                              : load_values(values, block, 0, limit, int(thread_index));
    product.multiply_accumulate(queries + chunk * kChunk, kQueryStride, tile, kKeyStride, simdgroup);
  }
  product.store_threadgroup(scores, kScoreStride, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// sums = factors sums + weights times the values of a block. `next` holds the first chunk of the values, and at the end
// that of the next block's keys.
METAL_FUNC void add_values(thread ValueSums& sums, threadgroup const bfloat* weights, threadgroup const float* factors,
                           threadgroup bfloat* tile, thread Moved& next, device const bfloat* keys,
                           device const bfloat* values, int block, int limit, uint thread_index, uint simdgroup,
                           uint lane) {
  UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) {
    if (chunk * kChunk < kHeadDim) {
      if (chunk > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
      store_values(tile, next, int(thread_index));
      threadgroup_barrier(mem_flags::mem_threadgroup);  // also after the weights and factors were written
      next = (chunk + 1) * kChunk < kHeadDim ? load_values(values, block, chunk + 1, limit, int(thread_index))
                                             : load_keys(keys, block + kBlock, 0, limit, int(thread_index));
      sums.chunk[chunk].scale_rows(factors, simdgroup, lane);
      sums.chunk[chunk].multiply_accumulate(weights, kWeightStride, tile, kValueStride, simdgroup);
    }
  }
}

// The rows of out by way of threadgroup memory [kRows, kChunk]; `out` and `gate` are those of this thread's row.
METAL_FUNC void write_rows(device bfloat* out, device const bfloat* gate, thread ValueSums& sums, float inverse,
                           int rows, threadgroup float* staging, uint thread_index, uint simdgroup, uint lane) {
  const int row = int(thread_index) / 4;
  UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) {
    if (chunk * kChunk < kHeadDim) {
      threadgroup_barrier(mem_flags::mem_threadgroup);
      sums.chunk[chunk].store_threadgroup(staging, kOutStride, simdgroup, lane);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL for (int i = 0; i < kChunk; i += kChunk / 2) {
        const int column = i + int(thread_index) % 4 * 8;
        const int dimension = chunk * kChunk + column;
        if (row < rows && dimension < kHeadDim) {
          write_gated(out + dimension, staging + row * kOutStride + column, gate + dimension, inverse);
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
  threadgroup uint4 cache_memory[kChunk * kValueStride / 8];  // larger than a chunk of keys
  threadgroup float4 score_memory[kRows * kScoreStride / 4];
  threadgroup uint4 weight_memory[kRows * kWeightStride / 8];
  threadgroup float factors[kRows];
  threadgroup bfloat* queries = (threadgroup bfloat*)query_memory;
  threadgroup bfloat* tile = (threadgroup bfloat*)cache_memory;
  threadgroup float* scores = (threadgroup float*)score_memory;
  threadgroup bfloat* weights = (threadgroup bfloat*)weight_memory;

  const int first_row = int((args.rows + kRows - 1) / kRows - 1 - group.x) * kRows;  // most positions first
  const int rows = min(int(args.rows) - first_row, kRows);
  const int first_position = *position + first_row;
  const int limit = first_position + rows;  // positions that the last row sees
  const ulong head = ulong(first_row) * args.heads + group.y;
  const ulong cache = ulong(group.y * args.kv_heads / args.heads) * args.capacity * kHeadDim;
  keys += cache;
  values += cache;
  load_queries(queries, query + head * kHeadDim, rows, int(args.heads) * kHeadDim, int(thread_index));

  const int row = int(thread_index) / 4;
  const int column = int(thread_index) % 4 * (kBlock / 4);
  RowState state = {-INFINITY, 0.0f};
  ValueSums sums;
  UNROLL for (int chunk = 0; chunk < kMaxChunks; chunk++) sums.chunk[chunk].clear();
  Moved next = load_keys(keys, 0, 0, limit, int(thread_index));
  for (int block = 0; block < limit; block += kBlock) {
    multiply_keys(scores, queries, tile, next, keys, values, block, limit, thread_index, simdgroup, lane);
    const float factor = weigh_block(state, scores + row * kScoreStride + column,
                                     weights + row * kWeightStride + column,
                                     first_position + row + 1 - block - column);
    if (column == 0) factors[row] = factor;
    add_values(sums, weights, factors, tile, next, keys, values, block, limit, thread_index, simdgroup, lane);
  }
  const ulong own_head = head + ulong(row) * args.heads;
  write_rows(out + own_head * kHeadDim, projected_query + (2 * own_head + 1) * kHeadDim, sums, 1.0f / state.sum, rows,
             (threadgroup float*)query_memory, thread_index, simdgroup, lane);
}
