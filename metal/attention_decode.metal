// attention_decode.metal -- attention of one token over the cache, in splits (flash decoding), and their reduction.
//
// query bf16 [heads, head_dim] (scaled), keys and values bf16 [kv_heads, capacity, head_dim], partial f32 [splits,
// heads, head_dim + 2] {maximum, sum, weighted values}. A threadgroup has the positions of a split for kQueryHeads
// heads that share a KV head, and takes them in blocks of kAttentionBlock: scores to threadgroup memory, exponentials,
// then values.
//
// Coalesced (D5): LANES neighbouring lanes read one position, 16 bytes each. The partial products of 8 positions and
// all query heads are then summed over the lanes together, by halving: as many shuffles as there are sums. Otherwise
// each lane reads its own positions.
#include "lily_common.h"

constant int kHeadDim [[function_constant(kHeadDimIndex)]];
constant int kQueryHeads [[function_constant(kQueryHeadsIndex)]];
constant int kCoalesced [[function_constant(kCoalescedIndex)]];

constant constexpr int kMaxHeadDim = 256;
constant constexpr int kMaxQueryHeads = 4;
constant constexpr int kSimdgroups = kAttentionThreads / kSimdWidth;
constant constexpr int kGroupPositions = 8;  // a simdgroup takes at a time
constant constexpr int kRoundPositions = kGroupPositions * kSimdgroups;  // so the threadgroup

// 8 neighbouring dimensions: 16 bytes of bf16.
struct Eight {
  float at[8];
};

METAL_FUNC Eight widen(uint4 words) {
  Eight values;
  UNROLL for (int i = 0; i < 4; i++) {
    values.at[2 * i] = as_type<float>(words[i] << 16);
    values.at[2 * i + 1] = as_type<float>(words[i] & 0xFFFF0000u);
  }
  return values;
}

METAL_FUNC float product(Eight a, Eight b) {
  float sum = a.at[0] * b.at[0];
  UNROLL for (int i = 1; i < 8; i++) sum = fma(a.at[i], b.at[i], sum);
  return sum;
}

METAL_FUNC Eight add_scaled(Eight sum, float factor, Eight values) {
  UNROLL for (int i = 0; i < 8; i++) sum.at[i] = fma(factor, values.at[i], sum.at[i]);
  return sum;
}

// 8 dimensions of each query head.
template <int HEADS>
struct HeadValues {
  Eight head[HEADS];
};

template <int COUNT>
struct LaneSums {
  float at[COUNT];
};

// One halving of COUNT values to WIDTH: lanes whose bit of the mask is set keep the upper ones.
template <int COUNT, int LANES, int WIDTH>
METAL_FUNC LaneSums<COUNT> halve(LaneSums<COUNT> values, uint lane) {
  constexpr int mask = LANES * WIDTH / COUNT;
  const bool is_upper = (lane & uint(mask)) != 0;
  UNROLL for (int i = 0; i < WIDTH; i++) {
    const float sent = is_upper ? values.at[i] : values.at[i + WIDTH];
    const float kept = is_upper ? values.at[i + WIDTH] : values.at[i];
    values.at[i] = kept + simd_shuffle_xor(sent, ushort(mask));
  }
  return values;
}

// Sums COUNT values over groups of LANES lanes: lane l of a group gets the sum of value l / (LANES / COUNT).
template <int COUNT, int LANES>
METAL_FUNC float sum_over_lanes(LaneSums<COUNT> values, uint lane) {
  static_assert(COUNT >= 4 && COUNT <= 32 && LANES % COUNT == 0, "unsupported number of sums");
  if (COUNT >= 32) values = halve<COUNT, LANES, COUNT / 2>(values, lane);
  if (COUNT >= 16) values = halve<COUNT, LANES, (COUNT < 16 ? 1 : 8)>(values, lane);
  if (COUNT >= 8) values = halve<COUNT, LANES, (COUNT < 8 ? 1 : 4)>(values, lane);
  values = halve<COUNT, LANES, 2>(values, lane);
  values = halve<COUNT, LANES, 1>(values, lane);
  UNROLL for (int mask = LANES / COUNT / 2; mask > 0; mask /= 2) {
    values.at[0] += simd_shuffle_xor(values.at[0], ushort(mask));
  }
  return values.at[0];
}

// Reduces over the lanes that share lane % HEADS, then over simdgroups; scratch holds one value a head and simdgroup.
template <int HEADS>
METAL_FUNC float head_maximum(float value, threadgroup float* scratch, uint simdgroup, uint lane) {
  UNROLL for (int mask = kSimdWidth / 2; mask >= HEADS; mask /= 2) {
    value = max(value, simd_shuffle_xor(value, ushort(mask)));
  }
  if (lane < uint(HEADS)) scratch[simdgroup * HEADS + lane] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = scratch[lane % HEADS];
  UNROLL for (int i = 1; i < kSimdgroups; i++) value = max(value, scratch[i * HEADS + lane % HEADS]);
  return value;
}

template <int HEADS>
METAL_FUNC float head_sum(float value, threadgroup float* scratch, uint simdgroup, uint lane) {
  UNROLL for (int mask = kSimdWidth / 2; mask >= HEADS; mask /= 2) value += simd_shuffle_xor(value, ushort(mask));
  if (lane < uint(HEADS)) scratch[simdgroup * HEADS + lane] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = 0.0f;
  UNROLL for (int i = 0; i < kSimdgroups; i++) value += scratch[i * HEADS + lane % HEADS];
  return value;
}

// Scores [count, HEADS] of positions from `keys` on, and -INFINITY up to a multiple of kGroupPositions.
template <int HEADS, int LANES>
METAL_FUNC void coalesced_scores(threadgroup float* scores, device const bfloat* query, device const bfloat* keys,
                                 int head_dim, int count, uint simdgroup, uint lane) {
  constexpr int LOADS = LANES * kGroupPositions / kSimdWidth;
  constexpr int COUNT = LOADS * HEADS;
  const int words = head_dim / 8;  // uint4s a position
  const int word = int(lane) % LANES;
  const int slot = int(lane) / LANES;
  const bool is_inside = word < words;
  HeadValues<HEADS> queries;
  UNROLL for (int h = 0; h < HEADS; h++) {
    queries.head[h] = widen(is_inside ? ((device const uint4*)query)[h * words + word] : uint4(0));
  }
  for (int first = int(simdgroup) * kGroupPositions; first < count; first += kRoundPositions) {
    uint4 loaded[LOADS];
    UNROLL for (int i = 0; i < LOADS; i++) {
      const int position = first + i * (kSimdWidth / LANES) + slot;
      loaded[i] = is_inside && position < count ? ((device const uint4*)keys)[position * words + word] : uint4(0);
    }
    LaneSums<COUNT> sums;
    UNROLL for (int i = 0; i < LOADS; i++) {
      const Eight key = widen(loaded[i]);
      UNROLL for (int h = 0; h < HEADS; h++) sums.at[i * HEADS + h] = product(queries.head[h], key);
    }
    const float sum = sum_over_lanes<COUNT, LANES>(sums, lane);
    const int index = word / (LANES / COUNT);
    const int position = first + index / HEADS * (kSimdWidth / LANES) + slot;
    if (word % (LANES / COUNT) == 0) scores[position * HEADS + index % HEADS] = position < count ? sum : -INFINITY;
  }
}

template <int HEADS>
METAL_FUNC void own_scores(threadgroup float* scores, device const bfloat* query, device const bfloat* keys,
                           int head_dim, int count, uint thread_index) {
  const int words = head_dim / 8;
  const int rounded = (count + kGroupPositions - 1) / kGroupPositions * kGroupPositions;
  for (int position = int(thread_index); position < rounded; position += kAttentionThreads) {
    float sums[HEADS];
    UNROLL for (int h = 0; h < HEADS; h++) sums[h] = position < count ? 0.0f : -INFINITY;
    for (int word = 0; word < words && position < count; word++) {
      const Eight key = widen(((device const uint4*)keys)[position * words + word]);
      UNROLL for (int h = 0; h < HEADS; h++) {
        sums[h] += product(widen(((device const uint4*)query)[h * words + word]), key);
      }
    }
    UNROLL for (int h = 0; h < HEADS; h++) scores[position * HEADS + h] = sums[h];
  }
}

// The weights of a position, in one access.
template <int HEADS>
METAL_FUNC LaneSums<HEADS> load_weights(threadgroup const float* weights) {
  LaneSums<HEADS> loaded;
  if (HEADS == 4) {
    const float4 all = *(threadgroup const float4*)weights;
    UNROLL for (int h = 0; h < HEADS; h++) loaded.at[h] = all[h];
  } else {
    UNROLL for (int h = 0; h < HEADS; h++) loaded.at[h] = weights[h];
  }
  return loaded;
}

// sums += weights [count, HEADS] times values; a lane sums 8 dimensions of the positions that it reads.
template <int HEADS, int LANES>
METAL_FUNC void add_coalesced(thread HeadValues<HEADS>& sums, threadgroup const float* weights,
                              device const bfloat* values, int head_dim, int count, uint simdgroup, uint lane) {
  constexpr int LOADS = LANES * kGroupPositions / kSimdWidth;
  const int words = head_dim / 8;
  const int word = int(lane) % LANES;
  const int slot = int(lane) / LANES;
  const bool is_inside = word < words;
  for (int first = int(simdgroup) * kGroupPositions; first < count; first += kRoundPositions) {
    uint4 loaded[LOADS];
    UNROLL for (int i = 0; i < LOADS; i++) {
      const int position = first + i * (kSimdWidth / LANES) + slot;
      loaded[i] = is_inside && position < count ? ((device const uint4*)values)[position * words + word] : uint4(0);
    }
    UNROLL for (int i = 0; i < LOADS; i++) {
      const int position = first + i * (kSimdWidth / LANES) + slot;
      const Eight value = widen(loaded[i]);
      const LaneSums<HEADS> weight = load_weights<HEADS>(weights + position * HEADS);
      UNROLL for (int h = 0; h < HEADS; h++) sums.head[h] = add_scaled(sums.head[h], weight.at[h], value);
    }
  }
}

// The same with separate positions for each lane: 8 dimensions at a time are summed for the lane that has them.
template <int HEADS>
METAL_FUNC void add_own(thread HeadValues<HEADS>& sums, threadgroup const float* weights, device const bfloat* values,
                        int head_dim, int count, uint thread_index, uint lane) {
  const int words = head_dim / 8;
  for (int word = 0; word < words; word++) {
    HeadValues<HEADS> own;
    UNROLL for (int h = 0; h < HEADS; h++) own.head[h] = widen(uint4(0));
    for (int position = int(thread_index); position < count; position += kAttentionThreads) {
      const Eight value = widen(((device const uint4*)values)[position * words + word]);
      UNROLL for (int h = 0; h < HEADS; h++) {
        own.head[h] = add_scaled(own.head[h], weights[position * HEADS + h], value);
      }
    }
    UNROLL for (int h = 0; h < HEADS; h++) {
      UNROLL for (int i = 0; i < 8; i++) {
        const float total = simd_sum(own.head[h].at[i]);
        sums.head[h].at[i] += int(lane) == word ? total : 0.0f;
      }
    }
  }
}

// Adds the sums of the lanes with other positions and of the other simdgroups, and writes them. `scratch` has room for
// the sums of two simdgroups.
template <int HEADS, int LANES>
METAL_FUNC void write_sums(device float* partial, HeadValues<HEADS> sums, threadgroup float* scratch, int head_dim,
                           uint simdgroup, uint lane) {
  if (LANES < int(kSimdWidth)) {
    UNROLL for (int h = 0; h < HEADS; h++) {
      UNROLL for (int i = 0; i < 8; i++) sums.head[h].at[i] += simd_shuffle_xor(sums.head[h].at[i], ushort(LANES));
    }
  }
  for (uint half_count = kSimdgroups / 2; half_count > 0; half_count /= 2) {
    threadgroup float* mine = scratch + (simdgroup % half_count) * HEADS * kMaxHeadDim;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup >= half_count && simdgroup < 2 * half_count) {
      UNROLL for (int h = 0; h < HEADS; h++) {
        UNROLL for (int i = 0; i < 8; i++) mine[(h * 8 + i) * kSimdWidth + lane] = sums.head[h].at[i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup < half_count) {
      UNROLL for (int h = 0; h < HEADS; h++) {
        UNROLL for (int i = 0; i < 8; i++) sums.head[h].at[i] += mine[(h * 8 + i) * kSimdWidth + lane];
      }
    }
  }
  if (simdgroup == 0 && int(lane) < head_dim / 8) {
    UNROLL for (int h = 0; h < HEADS; h++) {
      device float2* out = (device float2*)(partial + h * (head_dim + 2) + 2) + 4 * lane;
      UNROLL for (int i = 0; i < 4; i++) out[i] = float2(sums.head[h].at[2 * i], sums.head[h].at[2 * i + 1]);
    }
  }
}

// Positions [first, last), with BLOCKED one block at most, for HEADS query heads, whose partial results are neighbours.
// `scores` has room for kAttentionBlock positions of each head, `scratch` for a value of each head and simdgroup.
template <int HEADS, int LANES, bool BLOCKED>
METAL_FUNC void attend(device const bfloat* query, device const bfloat* keys, device const bfloat* values,
                       device float* partial, int head_dim, int first, int last, threadgroup float* scores,
                       threadgroup float* scratch, uint thread_index, uint simdgroup, uint lane) {
  HeadValues<HEADS> sums;
  UNROLL for (int h = 0; h < HEADS; h++) sums.head[h] = widen(uint4(0));
  float maximum = -INFINITY;  // of head lane % HEADS
  float sum = 0.0f;           // of this thread's scores, all of head lane % HEADS
  for (int block = first; block < last; block += kAttentionBlock) {
    const int count = min(last - block, int(kAttentionBlock));
    const int score_count = (count + kGroupPositions - 1) / kGroupPositions * kGroupPositions * HEADS;
    const ulong offset = ulong(block) * head_dim;
    if (block != first) threadgroup_barrier(mem_flags::mem_threadgroup);
    if (kCoalesced != 0) {
      coalesced_scores<HEADS, LANES>(scores, query, keys + offset, head_dim, count, simdgroup, lane);
    } else {
      own_scores<HEADS>(scores, query, keys + offset, head_dim, count, thread_index);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float largest = maximum;
    for (int i = int(thread_index); i < score_count; i += kAttentionThreads) largest = max(largest, scores[i]);
    largest = head_maximum<HEADS>(largest, scratch, simdgroup, lane);
    const float factor = precise::exp(maximum - largest);
    maximum = largest;
    sum *= factor;
    for (int i = int(thread_index); i < score_count; i += kAttentionThreads) {
      const float weight = precise::exp(scores[i] - maximum);
      scores[i] = weight;
      sum += weight;
    }
    UNROLL for (int h = 0; h < HEADS; h++) {
      const float head_factor = simd_shuffle(factor, ushort(h));
      UNROLL for (int i = 0; i < 8; i++) sums.head[h].at[i] *= head_factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (kCoalesced != 0) {
      add_coalesced<HEADS, LANES>(sums, scores, values + offset, head_dim, count, simdgroup, lane);
    } else {
      add_own<HEADS>(sums, scores, values + offset, head_dim, count, thread_index, lane);
    }
    if (BLOCKED) break;
  }
  sum = head_sum<HEADS>(sum, scratch, simdgroup, lane);
  if (thread_index < uint(HEADS)) {
    partial[thread_index * (head_dim + 2)] = maximum;
    partial[thread_index * (head_dim + 2) + 1] = sum;
  }
  write_sums<HEADS, LANES>(partial, sums, scores, head_dim, simdgroup, lane);
}

template <int HEADS, bool BLOCKED>
METAL_FUNC void attend_any(device const bfloat* query, device const bfloat* keys, device const bfloat* values,
                           device float* partial, int head_dim, int first, int last, threadgroup float* scores,
                           threadgroup float* scratch, uint thread_index, uint simdgroup, uint lane) {
  if (BLOCKED || head_dim > 128) {
    attend<HEADS, 32, BLOCKED>(query, keys, values, partial, head_dim, first, last, scores, scratch, thread_index,
                               simdgroup, lane);
  } else {
    attend<HEADS, 16, BLOCKED>(query, keys, values, partial, head_dim, first, last, scores, scratch, thread_index,
                               simdgroup, lane);
  }
}

// BLOCKED: D7, a fixed block a split; its head_dim is known when this is compiled.
template <bool BLOCKED>
[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention_decode(
    device const bfloat* query [[buffer(0)]],
    device const bfloat* keys [[buffer(1)]],
    device const bfloat* values [[buffer(2)]],
    device const int* position [[buffer(3)]],
    device float* partial [[buffer(4)]],
    constant AttentionArgs& args [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 score_memory[kAttentionBlock * kMaxQueryHeads / 4];
  threadgroup float scratch[kSimdgroups * kMaxQueryHeads];
  threadgroup float* scores = (threadgroup float*)score_memory;
  const int head_dim = BLOCKED ? kMaxHeadDim : kHeadDim;
  const int positions = *position + 1;
  const int split_positions = BLOCKED ? int(kAttentionBlock) : (positions + int(args.splits) - 1) / int(args.splits);
  const int first = min(positions, int(group.x) * split_positions);
  const int last = min(positions, first + split_positions);
  const uint head = group.y * kQueryHeads;
  const uint kv_head = head * args.kv_heads / args.heads;
  const ulong cache = ulong(kv_head) * args.capacity * head_dim;
  query += head * head_dim;
  keys += cache;
  values += cache;
  partial += (ulong(group.x) * args.heads + head) * (head_dim + 2);
  if (kQueryHeads == 4) {
    attend_any<4, BLOCKED>(query, keys, values, partial, head_dim, first, last, scores, scratch, thread_index,
                           simdgroup, lane);
  } else if (kQueryHeads == 2) {
    attend_any<2, BLOCKED>(query, keys, values, partial, head_dim, first, last, scores, scratch, thread_index,
                           simdgroup, lane);
  } else {
    attend_any<1, BLOCKED>(query, keys, values, partial, head_dim, first, last, scores, scratch, thread_index,
                           simdgroup, lane);
  }
}

// out[head] = sum of factor * values / sum of factor * sum over splits, gated; factor = exp(maximum - largest maximum).
// The simdgroups share the splits; a lane has dimensions 2 lane and 2 lane + 1 of each 64.
[[kernel, max_total_threads_per_threadgroup(kAttentionThreads)]] void attention_reduce(
    device const float* partial [[buffer(0)]],
    device const float* projected_query [[buffer(1)]],  // [heads, 2, head_dim], the gate second
    device bfloat* out [[buffer(2)]],                   // [heads, head_dim]
    constant AttentionArgs& args [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  constexpr int PAIRS = kMaxHeadDim / 2 / kSimdWidth;
  constexpr int SPLITS = 4;  // of a simdgroup at a time, so that their loads overlap
  threadgroup float scratch[kSimdgroups];
  threadgroup float all_sums[kSimdgroups * kMaxHeadDim];
  const uint stride = args.heads * (kHeadDim + 2);  // from one split to the next
  device const float* head = partial + group * (kHeadDim + 2);
  float largest = -INFINITY;
  for (uint split = thread_index; split < args.splits; split += kAttentionThreads) {
    largest = max(largest, head[split * stride]);
  }
  largest = head_maximum<1>(largest, scratch, simdgroup, lane);
  float2 sums[PAIRS];
  UNROLL for (int i = 0; i < PAIRS; i++) sums[i] = float2(0.0f);
  float sum = 0.0f;
  for (uint first = simdgroup; first < args.splits; first += SPLITS * kSimdgroups) {
    float2 maxima_and_sums[SPLITS];
    float2 values[SPLITS][PAIRS];
    UNROLL for (int j = 0; j < SPLITS; j++) {
      const uint split = first + j * kSimdgroups;
      device const float2* part = (device const float2*)(head + split * stride);
      maxima_and_sums[j] = split < args.splits ? part[0] : float2(-INFINITY, 0.0f);
      UNROLL for (int i = 0; i < PAIRS; i++) {
        const int pair = int(lane) + i * kSimdWidth;
        values[j][i] = split < args.splits && 2 * pair < kHeadDim ? part[1 + pair] : float2(0.0f);
      }
    }
    UNROLL for (int j = 0; j < SPLITS; j++) {
      const float factor = precise::exp(maxima_and_sums[j].x - largest);
      sum = fma(factor, maxima_and_sums[j].y, sum);
      UNROLL for (int i = 0; i < PAIRS; i++) sums[i] += factor * values[j][i];
    }
  }
  UNROLL for (int i = 0; i < PAIRS; i++) {
    const int pair = int(lane) + i * kSimdWidth;
    if (2 * pair < kHeadDim) *(threadgroup float2*)(all_sums + simdgroup * kMaxHeadDim + 2 * pair) = sums[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // also between the uses of scratch
  if (lane == 0) scratch[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = (scratch[0] + scratch[1]) + (scratch[2] + scratch[3]);
  device const float* gate = projected_query + (2 * group + 1) * kHeadDim;
  for (int d = int(thread_index); d < kHeadDim; d += kAttentionThreads) {
    float value = 0.0f;
    UNROLL for (int i = 0; i < kSimdgroups; i++) value += all_sums[i * kMaxHeadDim + d];
    out[group * kHeadDim + d] = bfloat(value / total * sigmoid(gate[d]));
  }
}

template [[host_name("attention_decode")]] [[kernel]] decltype(attention_decode<false>) attention_decode<false>;
template [[host_name("attention_decode_blocked")]] [[kernel]] decltype(attention_decode<true>) attention_decode<true>;
