// gdn_scan.metal -- the recurrence of Gated DeltaNet over the tokens of a prompt chunk.
//
// Per token and value head, with the state S [value_dim, key_dim]:
//   S = decay S;  d = beta (v - S k);  S = S + d k^T;  out = S q
// Rows of S do not depend on each other. gdn_scan holds them in registers from the first token to the last, a row on
// the 32 lanes of a simdgroup (with 4 lanes a row it takes 1.22 times as long on an H200); gdn_scan_blocked, to compare
// with, carries them through memory from block to block of kScanBlock tokens.
#include "lily_gdn.h"

// Where the inputs of one token and one row of the state are.
struct TokenPlace {
  device const bfloat* query;
  device const bfloat* key;
  device const bfloat* value;
  device const float* decay;
  device const float* beta;

  METAL_FUNC void advance(constant GdnArgs& args) {
    query += args.key_heads * uint(kKeyDim);
    key += args.key_heads * uint(kKeyDim);
    value += args.value_heads * args.value_dim;
    decay += args.value_heads;
    beta += args.value_heads;
  }
};

// The inputs of a step, unconverted: a conversion would wait for the memory.
template <int LANES>
struct TokenInputs {
  KeyRow<LANES> key;
  bfloat value;
  float decay;
  float beta;

  METAL_FUNC void load(thread const TokenPlace& place, uint lane) {
    key.load(place.key, lane);
    value = *place.value;
    decay = *place.decay;
    beta = *place.beta;
  }
};

// LANES lanes a row, 32 / LANES rows a simdgroup, SIMDGROUPS simdgroups a threadgroup. A token's inputs are read while
// the token before is worked on; its query, needed last, when its own work begins. The sums that make `out` are taken
// for TOKENS tokens together: on the way from token to token lies one sum over the lanes of a row.
template <int LANES, int TOKENS, int SIMDGROUPS>
[[kernel, max_total_threads_per_threadgroup(SIMDGROUPS * kSimdWidth)]] void gdn_scan(
    device const bfloat* query [[buffer(0)]],     // [tokens, key_heads, key_dim]
    device const bfloat* key [[buffer(1)]],       // [tokens, key_heads, key_dim]
    device const bfloat* value [[buffer(2)]],     // [tokens, value_heads, value_dim]
    device const float* decay [[buffer(3)]],      // [tokens, value_heads]
    device const float* beta [[buffer(4)]],       // [tokens, value_heads]
    device const float* state [[buffer(5)]],      // [value_heads, value_dim, key_dim]
    device float* next_state [[buffer(6)]],       // [value_heads, value_dim, key_dim]
    device float* out [[buffer(7)]],              // [tokens, value_heads, value_dim]
    constant GdnArgs& args [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simd_lane [[thread_index_in_simdgroup]]) {
  const uint head = group.y;
  const uint first_row = (group.x * SIMDGROUPS + simdgroup) * (kSimdWidth / LANES);
  if (first_row >= args.value_dim) return;
  const uint lane = simd_lane % LANES;
  const uint row = first_row + simd_lane / LANES;
  const uint row_read = min(row, args.value_dim - 1);  // lanes past the last row work on it too, and store nothing
  const uint state_at = (head * args.value_dim + row_read) * uint(kKeyDim);

  StateRow<LANES> row_state;
  row_state.load(state + state_at, lane);
  const uint key_at = head * args.key_heads / args.value_heads * uint(kKeyDim);
  const uint value_at = head * args.value_dim + row_read;
  TokenPlace place = {query + key_at, key + key_at, value + value_at, decay + head, beta + head};
  TokenInputs<LANES> next;
  next.load(place, lane);
  for (uint first = 0; first < args.tokens; first += TOKENS) {
    float reads[TOKENS];
    UNROLL for (int i = 0; i < TOKENS; i++) {
      const uint token = first + uint(i);
      reads[i] = 0.0f;
      if (token < args.tokens) {
        const TokenInputs<LANES> now = next;
        KeyRow<LANES> query_row;
        query_row.load(place.query, lane);
        if (token + 1 < args.tokens) {
          place.advance(args);
          next.load(place, lane);
        }
        reads[i] = delta_step(row_state, query_row, now.key, float(now.value), now.decay, now.beta);
      }
    }
    const float sum = sum_each<LANES, TOKENS>(reads, lane);
    const uint token = first + lane;
    if (lane < TOKENS && token < args.tokens && row < args.value_dim) {
      out[(token * args.value_heads + head) * args.value_dim + row] = sum;
    }
  }
  if (row < args.value_dim) row_state.store(next_state + state_at, lane);
}

template [[host_name("gdn_scan")]] [[kernel]]
decltype(gdn_scan<32, 8, kScanThreads / kSimdWidth>) gdn_scan<32, 8, kScanThreads / kSimdWidth>;

constant constexpr uint kKeyWords = kMaxKeyDim / 4;  // of two words, a token

[[kernel, max_total_threads_per_threadgroup(kScanThreads)]] void gdn_scan_blocked(
    device const bfloat* query [[buffer(0)]],     // [tokens, key_heads, key_dim]
    device const bfloat* key [[buffer(1)]],       // [tokens, key_heads, key_dim]
    device const bfloat* value [[buffer(2)]],     // [tokens, value_heads, value_dim]
    device const float* decay [[buffer(3)]],      // [tokens, value_heads]
    device const float* beta [[buffer(4)]],       // [tokens, value_heads]
    device const float* state [[buffer(5)]],      // [value_heads, value_dim, key_dim]
    device float* next_state [[buffer(6)]],       // [value_heads, value_dim, key_dim]
    device float* out [[buffer(7)]],              // [tokens, value_heads, value_dim]
    constant GdnArgs& args [[buffer(8)]],
    device float* block_states [[buffer(9)]],     // [blocks, value_heads, value_dim, key_dim]
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint2 queries[kScanBlock * kKeyWords];  // bf16 [kScanBlock, key_dim]
  threadgroup uint2 keys[kScanBlock * kKeyWords];
  const uint head = group.y;
  const uint key_head = head * args.key_heads / args.value_heads;
  const uint row = group.x * kScanColumns + simdgroup;
  const bool exists = row < args.value_dim;
  const uint row_read = min(row, args.value_dim - 1);
  const uint state_at = (head * args.value_dim + row_read) * uint(kKeyDim);
  const uint state_size = args.value_heads * args.value_dim * uint(kKeyDim);
  const uint words = uint(kKeyDim) / 4;

  for (uint first = 0; first < args.tokens; first += kScanBlock) {
    const uint count = min(uint(kScanBlock), args.tokens - first);
    for (uint i = thread_index; i < count * words; i += kScanThreads) {
      const uint from = ((first + i / words) * args.key_heads + key_head) * words + i % words;
      queries[i] = ((device const uint2*)query)[from];
      keys[i] = ((device const uint2*)key)[from];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint block = first / kScanBlock;
    StateRow<32> row_state;
    if (block == 0) {
      row_state.load(state + state_at, lane);
    } else if (exists) {
      row_state.load(block_states + (block - 1) * ulong(state_size) + state_at, lane);
    }
    for (uint i = 0; i < count; i++) {
      KeyRow<32> query_row;
      KeyRow<32> key_row;
      query_row.load_threadgroup(queries + i * words, lane);
      key_row.load_threadgroup(keys + i * words, lane);
      const uint at = (first + i) * args.value_heads + head;
      const uint value_at = at * args.value_dim + row_read;
      const float read =
          simd_sum(delta_step(row_state, query_row, key_row, float(value[value_at]), decay[at], beta[at]));
      if (exists && lane == 0) out[value_at] = read;
    }
    if (exists) {
      row_state.store(block_states + block * ulong(state_size) + state_at, lane);
      if (first + count == args.tokens) row_state.store(next_state + state_at, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before the next block's keys replace this one's
  }
}
