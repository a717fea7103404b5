// cpu/kernels/gdn_scan.h -- the gated delta rule of one value head over a chunk of tokens.
//
// Value rows are independent. 32 of them (16 KB of state at key_dim 128) stay in the first-level cache for a block of
// tokens, and one sweep over them does the end of a step and the beginning of the next:
//   S += d k^T;  y = S q;  S = decay' S;  S k'
// which is 4 multiply-adds, one load and one store for each vector of state; the sums of 16 rows are added at once.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

constexpr std::int64_t gdn_group = 16;  // value rows

// One sweep over the state of a group. Partial sums [16 rows][16 lanes].
struct GdnSweep {
  float* state;  // [gdn_group, key_dim]
  std::int64_t key_dim;
  const float* key;  // of the step that ends; nullptr before the first
  const float* query;
  const float* next_key;  // of the step that begins; nullptr after the last
  float next_decay;
  const float* delta;   // [16] d of each row
  float* output_lanes;  // [16][16] partial sums of S q
  float* next_lanes;    // [16][16] partial sums of S k'
};

template <class V, int rows, bool ends, bool begins>
struct GdnTile {
  V delta[rows];
  V output[rows];
  V next[rows];
  V decay;

  GdnTile(const GdnSweep& sweep, std::int64_t row) : decay(V::broadcast(sweep.next_decay)) {
    for (int r = 0; r < rows; ++r) {
      delta[r] = V::broadcast(ends ? sweep.delta[row + r] : 0.0F);
      output[r] = next[r] = V::broadcast(0.0F);
    }
  }

  // V::width columns; `load` and `store` move them, whole or in part.
  template <class Load, class Store>
  void step(const GdnSweep& sweep, std::int64_t row, std::int64_t column, Load load, Store store) {
    V key, query, next_key;
    if constexpr (ends) {
      key = load(sweep.key + column);
      query = load(sweep.query + column);
    }
    if constexpr (begins) next_key = load(sweep.next_key + column);
    for (int r = 0; r < rows; ++r) {
      float* at = sweep.state + (row + r) * sweep.key_dim + column;
      V s = load(at);
      if constexpr (ends) {
        s = fma(delta[r], key, s);
        output[r] = fma(s, query, output[r]);
      }
      if constexpr (begins) {
        s = s * decay;
        next[r] = fma(s, next_key, next[r]);
      }
      store(s, at);
    }
  }
};

// Value rows [row, row + rows) of the group. fixed_key_dim: key_dim where it is known at compile time, else 0.
// The sweep is passed by value: through a reference the compiler would reload its members after every store.
template <class V, int rows, bool ends, bool begins, int fixed_key_dim>
void gdn_sweep_rows(GdnSweep sweep, std::int64_t row) {
  const std::int64_t key_dim = fixed_key_dim != 0 ? fixed_key_dim : sweep.key_dim;
  sweep.key_dim = key_dim;
  for (int lane = 0; lane < strip_width; lane += V::width) {
    GdnTile<V, rows, ends, begins> tile(sweep, row);
    std::int64_t column = lane;
    for (; column + V::width <= key_dim; column += strip_width) {
      tile.step(
          sweep, row, column, [](const float* at) { return V::load(at); },
          [](const V& value, float* at) { value.store(at); });
    }
    if (column < key_dim) {
      const std::int64_t count = key_dim - column;
      tile.step(
          sweep, row, column, [count](const float* at) { return V::load_first(at, count); },
          [count](const V& value, float* at) { value.store_first(at, count); });
    }
    for (int r = 0; r < rows; ++r) {
      if constexpr (ends) tile.output[r].store(sweep.output_lanes + (row + r) * strip_width + lane);
      if constexpr (begins) tile.next[r].store(sweep.next_lanes + (row + r) * strip_width + lane);
    }
  }
}

template <class V, bool ends, bool begins, int fixed_key_dim>
void gdn_sweep(const GdnSweep& sweep, std::int64_t count) {
  std::int64_t row = 0;
  for (; row + V::gdn_rows <= count; row += V::gdn_rows) {
    gdn_sweep_rows<V, V::gdn_rows, ends, begins, fixed_key_dim>(sweep, row);
  }
  for (; row < count; ++row) gdn_sweep_rows<V, 1, ends, begins, fixed_key_dim>(sweep, row);
}

// Rows of a block of tokens, gathered: in the caller's arrays they are pages apart and contend for few cache sets.
struct GdnBlock {
  std::int64_t tokens;
  const float* query;  // [tokens, key_dim]; row stride `stride`
  const float* key;
  std::int64_t stride;
  const float* value;  // [tokens, value_dim]; the other pointers as in GdnScanArgs, moved to the block's first token
  const float* decay;
  const float* beta;
  float* out;
};

// 16 value rows (or `count` < 16) between two sweeps.
struct GdnGroup {
  alignas(64) float output_lanes[gdn_group * strip_width] = {};
  alignas(64) float next_lanes[gdn_group * strip_width] = {};
  alignas(64) float sums[gdn_group];
  alignas(64) float delta[gdn_group];
  std::int64_t value_row;
  std::int64_t count;
  GdnSweep sweep;
};

template <class V, int fixed_key_dim>
void gdn_begin(const GdnScanArgs& args, const GdnBlock& block, std::int64_t value_row, std::int64_t count,
               GdnGroup& group) {
  group.value_row = value_row;
  group.count = count;
  group.sweep = {args.state + value_row * args.key_dim,
                 args.key_dim,
                 nullptr,
                 nullptr,
                 block.key,
                 block.decay[0],
                 group.delta,
                 group.output_lanes,
                 group.next_lanes};
  gdn_sweep<V, false, true, fixed_key_dim>(group.sweep, count);
}

// Step t of the block, and the beginning of step t + 1.
template <class V, int fixed_key_dim>
void gdn_step(const GdnScanArgs& args, const GdnBlock& block, std::int64_t t, GdnGroup& group) {
  __builtin_prefetch(block.value + smaller(t + 2, block.tokens - 1) * args.qkv_stride + group.value_row);
  V::sum_16(group.next_lanes, group.sums);
  const auto value = Strip<V>::load_first(block.value + t * args.qkv_stride + group.value_row, group.count);
  const auto beta = Strip<V>::broadcast(block.beta[t * args.gate_stride]);
  (beta * (value - Strip<V>::load(group.sums))).store(group.delta);
  group.sweep.key = block.key + t * block.stride;
  group.sweep.query = block.query + t * block.stride;
  if (t + 1 < block.tokens) {
    group.sweep.next_key = group.sweep.key + block.stride;
    group.sweep.next_decay = block.decay[(t + 1) * args.gate_stride];
    gdn_sweep<V, true, true, fixed_key_dim>(group.sweep, group.count);
  } else {
    gdn_sweep<V, true, false, fixed_key_dim>(group.sweep, group.count);
  }
  V::sum_16(group.output_lanes, group.sums);
  Strip<V>::load(group.sums).store_first(block.out + t * args.out_stride + group.value_row, group.count);
}

// Two groups alternate: while the sums of one are added up, the sweep over the other keeps the processor busy.
template <class V, int fixed_key_dim>
void gdn_scan_block(const GdnScanArgs& args, const GdnBlock& block) {
  GdnGroup groups[2];
  for (std::int64_t row = args.value_begin; row < args.value_end;) {
    int held = 0;
    for (; held < 2 && row < args.value_end; ++held, row += gdn_group) {
      gdn_begin<V, fixed_key_dim>(args, block, row, smaller(gdn_group, args.value_end - row), groups[held]);
    }
    // While a chunk of one token is at it, the rows of the next turn come from memory.
    const float* following = args.state + row * args.key_dim;
    for (std::int64_t i = 0; args.tokens == 1 && i < 2 * gdn_group * args.key_dim; i += 16) {
      __builtin_prefetch(following + i, 1, 2);
    }
    for (std::int64_t t = 0; t < block.tokens; ++t) {
      for (int g = 0; g < held; ++g) gdn_step<V, fixed_key_dim>(args, block, t, groups[g]);
    }
  }
}

// The same arithmetic for any key_dim; fixed_key_dim only lets the compiler unroll.
template <class V, int fixed_key_dim>
void gdn_scan_with(const GdnScanArgs& args) {
  constexpr std::int64_t gathered_floats = 64 * 128;
  alignas(64) float query[gathered_floats];
  alignas(64) float key[gathered_floats];
  const bool gather = args.tokens > 1 && args.key_dim * 2 <= gathered_floats;
  const std::int64_t block_tokens = gather ? gathered_floats / args.key_dim : args.tokens;
  for (std::int64_t start = 0; start < args.tokens; start += block_tokens) {
    GdnBlock block{smaller(block_tokens, args.tokens - start), args.query + start * args.qkv_stride,
                   args.key + start * args.qkv_stride,         args.qkv_stride,
                   args.value + start * args.qkv_stride,       args.decay + start * args.gate_stride,
                   args.beta + start * args.gate_stride,       args.out + start * args.out_stride};
    if (gather) {
      const auto bytes = static_cast<std::size_t>(args.key_dim) * sizeof(float);
      for (std::int64_t t = 0; t < block.tokens; ++t) {
        __builtin_memcpy(query + t * args.key_dim, block.query + t * args.qkv_stride, bytes);
        __builtin_memcpy(key + t * args.key_dim, block.key + t * args.qkv_stride, bytes);
      }
      block.query = query;
      block.key = key;
      block.stride = args.key_dim;
    }
    gdn_scan_block<V, fixed_key_dim>(args, block);
  }
}

template <class V>
void gdn_scan(const GdnScanArgs& args) {
  if (args.tokens <= 0) return;
  if (args.key_dim == 128) {
    gdn_scan_with<V, 128>(args);
  } else {
    gdn_scan_with<V, 0>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
