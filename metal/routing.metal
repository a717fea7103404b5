// routing.metal -- which experts a row goes to, and rows grouped by expert for the matrix products of a prompt.
// lily_args.h has slots and launches. An assignment is row * experts_per_token + slot; its place is where it lies once
// grouped by expert: by expert, then by assignment. Nothing here uses atomics, so that places never vary.
//
// logits f32 [rows, experts]; chosen int and weights f32 [rows, experts_per_token]; row_of and place_of uint
// [rows * experts_per_token]; offsets uint [experts + 1]; block_map int2 [max_blocks] {expert, first row}.
#include "lily_common.h"

constant constexpr uint kTaken = 0u;  // key of an expert that is chosen already, or that does not exist
constant constexpr uint kNone = 0xffffffffu;
constant constexpr uint kGroupSimdgroups = kGroupThreads / kSimdWidth;

// Greater logit, greater key, never kTaken; NaN is on top, so that its weight spoils the row and no id is invented.
METAL_FUNC uint logit_key(float logit) {
  const uint bits = as_type<uint>(logit);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0xffffffffu;
  if (bits == 0x80000000u) return 0x80000000u;
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

// One row, with COUNT experts a lane. At most 32 experts are chosen.
template <uint COUNT>
METAL_FUNC void route_row(device const float* logits, device int* chosen, device float* weights,
                          constant RouteArgs& args, uint lane) {
  float logit[COUNT];
  uint key[COUNT];
  float maximum = -INFINITY;
  UNROLL for (uint i = 0; i < COUNT; i++) {
    const uint expert = lane + i * kSimdWidth;
    const bool exists = expert < args.experts;
    logit[i] = exists ? logits[expert] : -INFINITY;
    key[i] = exists ? logit_key(logit[i]) : kTaken;
    maximum = max(maximum, logit[i]);
  }
  maximum = simd_max(maximum);
  float sum = 0.0f;
  if (args.normalize == 0u) {
    UNROLL for (uint i = 0; i < COUNT; i++) sum += precise::exp(logit[i] - maximum);
  }

  // Lane t keeps the expert of round t: the greatest key, of equal ones the lowest id.
  uint own_expert = kNone;
  float own_weight = 0.0f;
  for (uint round = 0; round < args.experts_per_token; round++) {
    uint best = kTaken;
    uint expert = kNone;
    float best_logit = 0.0f;
    UNROLL for (uint i = 0; i < COUNT; i++) {
      if (key[i] > best) {
        best = key[i];
        expert = lane + i * kSimdWidth;
        best_logit = logit[i];
      }
    }
    const uint greatest = simd_max(best);
    const uint winner = simd_min(best == greatest ? expert : kNone);
    const float winner_logit = simd_shuffle(best_logit, ushort(winner % kSimdWidth));
    UNROLL for (uint i = 0; i < COUNT; i++) {
      if (lane + i * kSimdWidth == winner) key[i] = kTaken;
    }
    if (lane == round) {
      own_expert = winner;
      own_weight = precise::exp(winner_logit - maximum);
    }
  }
  own_weight /= args.normalize != 0u ? simd_sum(own_weight) : simd_sum(sum);
  uint rank = 0;
  for (uint round = 0; round < args.experts_per_token; round++) {
    rank += simd_broadcast(own_expert, ushort(round)) < own_expert ? 1u : 0u;
  }
  if (lane >= args.experts_per_token) return;
  chosen[rank] = int(own_expert);
  weights[rank] = own_weight;
}

// At most 512 experts.
[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void route_rows(
    device const float* logits [[buffer(0)]],  // [rows, experts]
    device int* chosen [[buffer(1)]],          // [rows, experts_per_token], ascending
    device float* weights [[buffer(2)]],       // [rows, experts_per_token]
    constant RouteArgs& args [[buffer(3)]], uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  device const float* row_logits = logits + row * args.experts;
  device int* row_chosen = chosen + row * args.experts_per_token;
  device float* row_weights = weights + row * args.experts_per_token;
  if (args.experts <= 8 * kSimdWidth) {
    route_row<8>(row_logits, row_chosen, row_weights, args, lane);
  } else {
    route_row<16>(row_logits, row_chosen, row_weights, args, lane);
  }
}

// Four experts from assignment `first` on (a multiple of 4); -1 past the end.
METAL_FUNC int4 load_chosen(device const int* chosen, uint first, uint assignments) {
  if (first + 4 <= assignments) return *(device const int4*)(chosen + first);
  int4 result = int4(-1);
  if (first < assignments) result.x = chosen[first];
  if (first + 1 < assignments) result.y = chosen[first + 1];
  if (first + 2 < assignments) result.z = chosen[first + 2];
  return result;
}

METAL_FUNC uint count_of(int4 experts, int expert) {
  return uint(experts.x == expert) + uint(experts.y == expert) + uint(experts.z == expert) + uint(experts.w == expert);
}

[[kernel, max_total_threads_per_threadgroup(kGroupThreads)]] void route_histogram(
    device const int* chosen [[buffer(0)]],  // [assignments]
    device uint* counts [[buffer(1)]],       // [experts]
    constant GroupArgs& args [[buffer(2)]], uint expert [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint partial[kGroupSimdgroups];
  const uint assignments = args.rows * args.experts_per_token;
  uint count = 0;
  for (uint first = 4 * thread_index; first < assignments; first += 4 * kGroupThreads) {
    count += count_of(load_chosen(chosen, first, assignments), int(expert));
  }
  const uint sum = simd_sum(count);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (thread_index != 0) return;
  uint total = 0;
  for (uint i = 0; i < kGroupSimdgroups; i++) total += partial[i];
  counts[expert] = total;
}

[[kernel, max_total_threads_per_threadgroup(kGroupThreads)]] void route_offsets(
    device const uint* counts [[buffer(0)]],  // [experts]
    device uint* offsets [[buffer(1)]],       // [experts + 1]
    device int2* block_map [[buffer(2)]],     // [max_blocks] {expert, first row of the block inside the expert's group}
    device uint* block_count [[buffer(3)]],   // [1]
    constant GroupArgs& args [[buffer(4)]], uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint2 partial[kGroupSimdgroups];  // {assignments, blocks}
  const uint share = (args.experts + kGroupThreads - 1) / kGroupThreads;
  const uint first = min(thread_index * share, args.experts);
  const uint last = min(first + share, args.experts);
  uint2 own = uint2(0u);
  for (uint expert = first; expert < last; expert++) {
    const uint count = counts[expert];
    own += uint2(count, (count + args.block_rows - 1) / args.block_rows);
  }
  const uint2 through = simd_prefix_inclusive_sum(own);
  if (lane == kSimdWidth - 1) partial[simdgroup] = through;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint2 next = through - own;
  for (uint i = 0; i < simdgroup; i++) next += partial[i];
  for (uint expert = first; expert < last; expert++) {
    const uint count = counts[expert];
    offsets[expert] = next.x;
    next.x += count;
    for (uint row = 0; row < count; row += args.block_rows) {
      if (next.y < args.max_blocks) block_map[next.y] = int2(int(expert), int(row));
      next.y++;
    }
  }
  if (thread_index != kGroupThreads - 1) return;
  offsets[args.experts] = next.x;
  block_count[0] = min(next.y, args.max_blocks);
}

// Each simdgroup takes a quarter of the assignments, in order: it counts the expert's in its quarter, and after one
// barrier numbers them on from those of the simdgroups before it.
[[kernel, max_total_threads_per_threadgroup(kGroupThreads)]] void route_scatter(
    device const int* chosen [[buffer(0)]],    // [assignments]
    device const uint* offsets [[buffer(1)]],  // [experts + 1]
    device uint* row_of [[buffer(2)]],         // [assignments], by place
    device uint* place_of [[buffer(3)]],       // [assignments]
    constant GroupArgs& args [[buffer(4)]], uint expert [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint partial[kGroupSimdgroups];
  const uint place = offsets[expert];
  if (place == offsets[expert + 1]) return;
  const uint assignments = args.rows * args.experts_per_token;
  const uint step = 4 * kSimdWidth;
  const uint share = (assignments + kGroupSimdgroups * step - 1) / (kGroupSimdgroups * step) * step;
  const uint begin = min(simdgroup * share, assignments);
  const uint end = min(begin + share, assignments);
  uint count = 0;
  for (uint first = begin + 4 * lane; first < end; first += step) {
    count += count_of(load_chosen(chosen, first, assignments), int(expert));
  }
  const uint sum = simd_sum(count);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint next = place;
  for (uint i = 0; i < simdgroup; i++) next += partial[i];
  for (uint start = begin; start < end; start += step) {
    const uint first = start + 4 * lane;
    const int4 experts = load_chosen(chosen, first, assignments);
    const uint through = simd_prefix_inclusive_sum(count_of(experts, int(expert)));
    uint own = next + through - count_of(experts, int(expert));
    UNROLL for (uint i = 0; i < 4; i++) {
      if (experts[i] != int(expert)) continue;
      row_of[own] = (first + i) / args.experts_per_token;
      place_of[first + i] = own;
      own++;
    }
    next += simd_broadcast(through, ushort(kSimdWidth - 1));
  }
}

[[kernel, max_total_threads_per_threadgroup(kElementThreads)]] void combine_experts(
    device const bfloat* y [[buffer(0)]],           // [assignments, hidden_size], by place
    device const uint* place_of [[buffer(1)]],      // [assignments]
    device const float* weights [[buffer(2)]],      // [assignments]
    device const bfloat* shared_y [[buffer(3)]],    // [rows, hidden_size]
    device const float* shared_gate [[buffer(4)]],  // [rows], logits
    device float* hidden [[buffer(5)]],             // [rows, hidden_size]
    constant CombineArgs& args [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint column = group.x * kElementThreads + thread_index;
  const uint row = group.y;
  if (column >= args.hidden_size) return;
  const uint first = row * args.experts_per_token;
  float sum = 0.0f;
  for (uint i = 0; i < args.experts_per_token; i++) {
    sum += weights[first + i] * float(y[ulong(place_of[first + i]) * args.hidden_size + column]);
  }
  const ulong at = ulong(row) * args.hidden_size + column;
  hidden[at] += sum + sigmoid(shared_gate[row]) * float(shared_y[at]);
}
