// sampling.metal -- choosing the next token on the GPU: argmax in two launches, or a draw by one threadgroup; and the
// position of the next step. lily_args.h has slots and launches.
//
// sample_token reads the logits twice, as nearly always the few best candidates decide: the K-th greatest of the
// threads' own maxima bounds the K-th greatest logit from below, so that collecting what is not below that bound finds
// the K best and few more. They are sorted by rank, one a thread, and a prefix sum of their masses decides. Where they
// do not decide (flat distributions, many ties, a large top_k) every cut is found by radix descent: histograms over
// the distance in keys from the maximum, 11, 11 and 10 bits, in threadgroup memory. Both ways give the same token.
#include "lily_sampling.h"

constant constexpr uint kCollected = kSampleThreads;   // candidates that are sorted, one a thread
constant constexpr uint kWanted = kSampleThreads / 2;  // K without top_k; a greater top_k goes to the radix descent
constant constexpr uint kBins = 2048;
constant constexpr uint kSampleSimdgroups = kSampleThreads / kSimdWidth;
constant constexpr uint kNoToken = 0xffffffffu;

// A threadgroup and its memory for sums.
struct Group {
  uint thread_index;
  uint simdgroup;
  uint lane;
  threadgroup ulong* partial;  // [kSampleSimdgroups]
  threadgroup ulong* result;   // [2]

  // Inclusive prefix sum over the threads; total is that of all.
  METAL_FUNC ulong scan(ulong value, thread ulong& total) const {
    for (ushort distance = 1; distance < kSimdWidth; distance *= 2) {
      const uint2 other = simd_shuffle_up(uint2(uint(value), uint(value >> 32)), distance);
      if (lane >= distance) value += (ulong(other.y) << 32) | other.x;
    }
    if (lane == kSimdWidth - 1) partial[simdgroup] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0;
    ulong before = 0;
    for (uint i = 0; i < kSampleSimdgroups; i++) {
      if (i == simdgroup) before = total;
      total += partial[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return before + value;
  }
  METAL_FUNC ulong sum(ulong value) const {
    ulong total;
    scan(value, total);
    return total;
  }
};

// Threadgroup memory for the best candidates; keys and ids first have the threads' own maxima.
struct Candidates {
  threadgroup uint4* keys;         // [kCollected / 4]
  threadgroup uint4* ids;          // [kCollected / 4]
  threadgroup uint* sorted_keys;   // [kCollected]
  threadgroup uint* sorted_ids;    // [kCollected]
  threadgroup atomic_uint* count;  // [1]

  METAL_FUNC void put(uint place, uint key, uint id) const {
    ((threadgroup uint*)keys)[place] = key;
    ((threadgroup uint*)ids)[place] = id;
  }
  // How many of the first `size` come before this one: greater keys, and of equal keys lower ids.
  METAL_FUNC uint rank(uint key, uint id, uint size) const {
    uint result = 0;
    for (uint i = 0; i < (size + 3) / 4; i++) {
      const uint4 other = keys[i];
      const uint4 other_id = ids[i];
      result += other.x > key || (other.x == key && other_id.x < id) ? 1u : 0u;
      result += other.y > key || (other.y == key && other_id.y < id) ? 1u : 0u;
      result += other.z > key || (other.z == key && other_id.z < id) ? 1u : 0u;
      result += other.w > key || (other.w == key && other_id.w < id) ? 1u : 0u;
    }
    return result;
  }
};

// Shows each thread its share of the candidates as visitor.see(id, key), 16 at a time; places past the end look
// forbidden.
template <typename Visitor>
METAL_FUNC void visit(device const uint* logits, uint candidates, uint thread_index, thread Visitor& visitor) {
  device const uint4* vectors = (device const uint4*)logits;
  const uint count = candidates / 4;
  for (uint first = thread_index; first < count; first += 4 * kSampleThreads) {
    uint4 chunk[4];
    UNROLL for (uint i = 0; i < 4; i++) {
      const uint at = first + i * kSampleThreads;
      chunk[i] = at < count ? vectors[at] : uint4(0xff800000u);
    }
    UNROLL for (uint i = 0; i < 4; i++) {
      const uint id = 4 * (first + i * kSampleThreads);
      visitor.see(id, order_key(chunk[i].x));
      visitor.see(id + 1, order_key(chunk[i].y));
      visitor.see(id + 2, order_key(chunk[i].z));
      visitor.see(id + 3, order_key(chunk[i].w));
    }
  }
  const uint last = 4 * count + thread_index;
  if (last < candidates) visitor.see(last, order_key(logits[last]));
}

struct MaximumVisitor {
  uint key;
  METAL_FUNC void see(uint, uint other) { key = max(key, other); }
};

// The total of masses, and that of the masses of at least `least` (min_p).
struct TotalVisitor {
  MassScale scale;
  ulong least;
  ulong total;
  ulong kept;
  ulong allowed;
  METAL_FUNC void see(uint, uint key) {
    const ulong mass = scale.mass(key);
    total += mass;
    if (mass >= least) kept += mass;
    if (key > kKeyForbidden) allowed++;
  }
};

// Candidates of at least a key, in no particular order; the first kCollected are stored.
struct CollectVisitor {
  uint threshold;
  Candidates best;
  METAL_FUNC void see(uint id, uint key) {
    if (key < threshold) return;
    const uint place = atomic_fetch_add_explicit(best.count, 1u, memory_order_relaxed);
    if (place < kCollected) best.put(place, key, id);
  }
};

struct CollectTotalVisitor {
  CollectVisitor collect;
  TotalVisitor totals;
  METAL_FUNC void see(uint id, uint key) {
    collect.see(id, key);
    totals.see(id, key);
  }
};

// Masses of candidates nearer to the maximum than `distance`.
struct NearerVisitor {
  MassScale scale;
  uint distance;
  ulong mass;
  METAL_FUNC void see(uint, uint key) {
    if (scale.maximum_key - key < distance) mass += scale.mass(key);
  }
};

// Adds masses (or counts) to the bin of the digit of their distance, where the digits above it are `prefix`.
template <bool MASS>
struct HistogramVisitor {
  MassScale scale;
  uint prefix;
  uint shift;
  uint bits;
  threadgroup atomic_uint* bins;  // [2, kBins]: low words, then high words
  METAL_FUNC void see(uint, uint key) {
    const uint digits = (scale.maximum_key - key) >> shift;
    if (key <= kKeyForbidden || (digits >> bits) != prefix) return;
    const uint bin = digits & ((1u << bits) - 1u);
    const ulong measure = MASS ? scale.mass(key) : ulong(1);
    const uint low = uint(measure);
    if (measure == 0) return;
    // Carries come out right in any order: the low word wraps as often as its sum says.
    const uint old = atomic_fetch_add_explicit(bins + bin, low, memory_order_relaxed);
    const uint high = uint(measure >> 32) + (old + low < old ? 1u : 0u);
    if (high != 0u) atomic_fetch_add_explicit(bins + kBins + bin, high, memory_order_relaxed);
  }
};

// What a draw reads.
struct Draw {
  device const uint* logits;  // f32 bits [candidates]
  uint candidates;
  MassScale scale;
  uint top_k;
  uint top_p;
  ulong least;
  ulong random;
};

struct Cut {
  uint distance;  // key distance from the maximum
  ulong before;   // masses (or count) of what is nearer
};

// The nearest distance up to which the sum of masses (or the count) is above `target`, which is below the sum of all.
template <bool MASS>
METAL_FUNC Cut descend(thread const Draw& draw, ulong target, thread const Group& group,
                       threadgroup atomic_uint* bins) {
  Cut cut = {0u, 0};
  for (uint level = 0; level < 3; level++) {
    const uint shift = level == 0 ? 21u : level == 1 ? 10u : 0u;
    const uint bits = level == 2 ? 10u : 11u;
    for (uint i = group.thread_index; i < 2 * kBins; i += kSampleThreads) {
      atomic_store_explicit(bins + i, 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    HistogramVisitor<MASS> visitor = {draw.scale, cut.distance, shift, bits, bins};
    visit(draw.logits, draw.candidates, group.thread_index, visitor);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    ulong measures[kBins / kSampleThreads];
    ulong own = 0;
    UNROLL for (uint i = 0; i < kBins / kSampleThreads; i++) {
      const uint bin = group.thread_index * (kBins / kSampleThreads) + i;
      measures[i] = (ulong(atomic_load_explicit(bins + kBins + bin, memory_order_relaxed)) << 32) |
                    atomic_load_explicit(bins + bin, memory_order_relaxed);
      own += measures[i];
    }
    ulong total;
    ulong before = cut.before + group.scan(own, total) - own;
    UNROLL for (uint i = 0; i < kBins / kSampleThreads; i++) {
      if (before <= target && target - before < measures[i]) {
        group.result[0] = group.thread_index * (kBins / kSampleThreads) + i;
        group.result[1] = before;
      }
      before += measures[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    cut.distance = (cut.distance << bits) | uint(group.result[0]);
    cut.before = group.result[1];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  return cut;
}

// The id of tie number `tie` (by rising id) among the candidates with this key.
METAL_FUNC uint find_tie(thread const Draw& draw, uint key, ulong tie, thread const Group& group) {
  const uint share = (draw.candidates + kSampleThreads - 1) / kSampleThreads;
  const uint first = min(group.thread_index * share, draw.candidates);
  const uint last = min(first + share, draw.candidates);
  ulong own = 0;
  for (uint id = first; id < last; id++) {
    if (order_key(draw.logits[id]) == key) own++;
  }
  ulong total;
  ulong place = group.scan(own, total) - own;
  if (place <= tie && tie - place < own) {
    for (uint id = first; id < last; id++) {
      if (order_key(draw.logits[id]) == key && place++ == tie) group.result[0] = id;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return uint(group.result[0]);
}

// The draw among all candidates, by radix descent.
METAL_FUNC uint draw_by_descent(thread const Draw& draw, thread const Group& group, threadgroup atomic_uint* bins) {
  const MassScale scale = draw.scale;
  TotalVisitor totals = {scale, draw.least, 0, 0, 0};
  visit(draw.logits, draw.candidates, group.thread_index, totals);
  ulong total = group.sum(totals.total);
  ulong kept = group.sum(totals.kept);
  if (draw.top_k > 0 && draw.top_k < group.sum(totals.allowed)) {
    const Cut cut = descend<false>(draw, draw.top_k - 1, group, bins);
    NearerVisitor nearer = {scale, cut.distance, 0};
    visit(draw.logits, draw.candidates, group.thread_index, nearer);
    total = group.sum(nearer.mass) + (draw.top_k - cut.before) * scale.mass(scale.maximum_key - cut.distance);
    kept = min(kept, total);
  }
  if (draw.top_p < 0x80000000u) {
    const ulong share = share_of(total, draw.top_p);
    const Cut cut = descend<true>(draw, share - 1, group, bins);
    const ulong each = scale.mass(scale.maximum_key - cut.distance);
    kept = min(kept, cut.before + (share - cut.before + each - 1) / each * each);
  }
  const ulong target = scaled_draw(kept, draw.random);
  const Cut cut = descend<true>(draw, target, group, bins);
  const uint key = scale.maximum_key - cut.distance;
  return find_tie(draw, key, (target - cut.before) / scale.mass(key), group);
}

// The draw among the sorted candidates, one a thread; kNoToken where others may matter. total and kept are those of all
// candidates, and not used with top_k.
METAL_FUNC uint draw_among_sorted(thread const Draw& draw, uint key, uint id, ulong total, ulong kept,
                                  thread const Group& group) {
  const bool within = draw.top_k == 0 || group.thread_index < draw.top_k;
  const ulong mass = within ? draw.scale.mass(key) : ulong(0);
  if (group.thread_index == 0) {
    group.result[0] = 0;
    group.result[1] = kNoToken;
  }
  ulong sorted_total;
  const ulong through = group.scan(mass, sorted_total);
  if (draw.top_k > 0) {
    total = sorted_total;
    kept = group.sum(mass >= draw.least ? mass : ulong(0));
  }
  if (draw.top_p < 0x80000000u) {
    const ulong share = share_of(total, draw.top_p);
    if (sorted_total < share) return kNoToken;
    if (through >= share && through - mass < share) group.result[0] = through;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    kept = min(kept, group.result[0]);
  }
  const ulong target = scaled_draw(kept, draw.random);
  if (through > target && through - mass <= target) group.result[1] = id;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint token = uint(group.result[1]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return token;
}

// The greatest key of all, and the wanted-th greatest of the threads' own.
METAL_FUNC uint2 bounds_of_best(device const uint* logits, uint candidates, uint wanted, thread const Group& group,
                                thread const Candidates& best) {
  MaximumVisitor own = {0u};
  visit(logits, candidates, group.thread_index, own);
  best.put(group.thread_index, own.key, group.thread_index);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint rank = best.rank(own.key, group.thread_index, kSampleThreads);
  if (rank == 0) best.sorted_keys[0] = own.key;
  if (rank == wanted - 1) best.sorted_keys[1] = own.key;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return uint2(best.sorted_keys[0], best.sorted_keys[1]);
}

// The draw among the candidates of at least the key `threshold`; kNoToken where others may matter.
METAL_FUNC uint draw_among_best(thread const Draw& draw, uint threshold, thread const Group& group,
                                thread const Candidates& best) {
  const uint at = group.thread_index;
  best.put(at, 0u, 0u);
  best.sorted_keys[at] = 0u;
  best.sorted_ids[at] = 0u;
  if (at == 0) atomic_store_explicit(best.count, 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  CollectTotalVisitor visitor = {{max(threshold, kKeyForbidden + 1), best}, {draw.scale, draw.least, 0, 0, 0}};
  if (draw.top_k == 0) {
    visit(draw.logits, draw.candidates, at, visitor);
  } else {
    visit(draw.logits, draw.candidates, at, visitor.collect);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint count = atomic_load_explicit(best.count, memory_order_relaxed);
  if (count > kCollected) return kNoToken;
  if (at < count) {
    const uint key = ((threadgroup uint*)best.keys)[at];
    const uint id = ((threadgroup uint*)best.ids)[at];
    const uint rank = best.rank(key, id, count);
    best.sorted_keys[rank] = key;
    best.sorted_ids[rank] = id;
  }
  const ulong total = group.sum(visitor.totals.total);
  const ulong kept = group.sum(visitor.totals.kept);
  return draw_among_sorted(draw, best.sorted_keys[at], best.sorted_ids[at], total, kept, group);
}

[[kernel, max_total_threads_per_threadgroup(kSampleThreads)]] void sample_token(
    device const uint* logits [[buffer(0)]],   // f32 bits [candidates], 16-byte aligned
    device int* token [[buffer(1)]],           // [1]
    device const int* position [[buffer(2)]],  // [1], of the token being chosen
    constant SampleArgs& args [[buffer(3)]], uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup atomic_uint bins[2 * kBins];
  threadgroup uint4 keys[kCollected / 4];
  threadgroup uint4 ids[kCollected / 4];
  threadgroup uint sorted_keys[kCollected];
  threadgroup uint sorted_ids[kCollected];
  threadgroup ulong partial[kSampleSimdgroups];
  threadgroup ulong result[2];
  threadgroup atomic_uint count[1];
  const Group group = {thread_index, simdgroup, lane, partial, result};
  const Candidates best = {keys, ids, sorted_keys, sorted_ids, count};

  const uint wanted = args.top_k == 0 ? kWanted : min(args.top_k, kCollected);
  const uint2 bounds = bounds_of_best(logits, args.candidates, wanted, group, best);
  if (bounds.x <= kKeyForbidden || bounds.x >= kKeyInfinite) {
    if (thread_index == 0) token[0] = -1;
    return;
  }
  const MassScale scale = {bounds.x, logit_of_key(bounds.x), args.scale};
  const ulong random = random_at((ulong(args.seed_high) << 32) | args.seed_low, ulong(uint(position[0])));
  const Draw draw = {logits, args.candidates, scale, args.top_k, args.top_p, ulong(args.min_p) << 9, random};
  uint chosen = kNoToken;
  if (wanted <= kWanted) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    chosen = draw_among_best(draw, bounds.y, group, best);
  }
  if (chosen == kNoToken) chosen = draw_by_descent(draw, group, bins);
  if (thread_index == 0) token[0] = int(chosen);
}

// Part p of the logits: its greatest key's logit and the lowest id that has it; NaN if there is one in it.
[[kernel, max_total_threads_per_threadgroup(kArgmaxThreads)]] void argmax_partial(
    device const uint* logits [[buffer(0)]],  // f32 bits [candidates]
    device float* best [[buffer(1)]],         // [kArgmaxParts]
    device int* index [[buffer(2)]],          // [kArgmaxParts]
    constant SampleArgs& args [[buffer(3)]], uint part [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup uint keys[kArgmaxThreads / kSimdWidth];
  threadgroup uint ids[kArgmaxThreads / kSimdWidth];
  const uint share = (args.candidates + kArgmaxParts - 1) / kArgmaxParts;
  const uint last = min((part + 1) * share, args.candidates);
  uint key = 0;
  uint id = 0xffffffffu;
  for (uint i = part * share + thread_index; i < last; i += kArgmaxThreads) {
    const uint other = order_key(logits[i]);
    if (other > key) {
      key = other;
      id = i;
    }
  }
  const uint simd_key = simd_max(key);
  const uint simd_id = simd_min(key == simd_key ? id : 0xffffffffu);
  if (lane == 0) {
    keys[simdgroup] = simd_key;
    ids[simdgroup] = simd_id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup != 0) return;
  const bool used = lane < kArgmaxThreads / kSimdWidth;
  key = used ? keys[lane] : 0u;
  id = used ? ids[lane] : 0xffffffffu;
  const uint best_key = simd_max(key);
  const uint best_id = simd_min(key == best_key ? id : 0xffffffffu);
  if (lane == 0) {
    best[part] = best_key == 0u ? -INFINITY : logit_of_key(best_key);
    index[part] = int(min(best_id, 0x7fffffffu));
  }
}

[[kernel, max_total_threads_per_threadgroup(kArgmaxThreads)]] void argmax_final(
    device const uint* best [[buffer(0)]],  // f32 bits [kArgmaxParts]
    device const int* index [[buffer(1)]],  // [kArgmaxParts]
    device int* token [[buffer(2)]],        // [1]
    constant SampleArgs& args [[buffer(3)]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  if (simdgroup != 0) return;
  uint key = 0;
  uint id = 0xffffffffu;
  for (uint part = lane; part < kArgmaxParts; part += kSimdWidth) {
    const uint other = order_key(best[part]);
    if (other > key) {
      key = other;
      id = uint(index[part]);
    }
  }
  const uint best_key = simd_max(key);
  const uint best_id = simd_min(key == best_key ? id : 0xffffffffu);
  if (lane != 0) return;
  const bool usable = best_key > kKeyForbidden && best_key < kKeyInfinite && best_id < args.candidates;
  token[0] = usable ? int(best_id) : -1;
}

[[kernel, max_total_threads_per_threadgroup(kSimdWidth)]] void advance_position(
    device const int* position [[buffer(0)]],  // [1]
    device int* next_position [[buffer(1)]],   // [1]
    constant AdvanceArgs& args [[buffer(2)]], uint lane [[thread_index_in_simdgroup]]) {
  if (lane == 0) next_position[0] = position[0] + int(args.rows);
}
