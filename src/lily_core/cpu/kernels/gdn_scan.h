// cpu/kernels/gdn_scan.h -- the gated delta rule of one value head over a chunk of tokens.
//
// Value rows are independent. 16 of them (8 KB of state at key_dim 128) stay in the first-level cache for the whole
// chunk, and one sweep over them does the end of a step and the beginning of the next:
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
template <class V, int rows, bool ends, bool begins, int fixed_key_dim>
void gdn_sweep_rows(const GdnSweep& sweep, std::int64_t row) {
  const std::int64_t key_dim = fixed_key_dim != 0 ? fixed_key_dim : sweep.key_dim;
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

// Rows of different tokens are pages apart, which the processor does not foresee.
inline void gdn_prefetch(const GdnScanArgs& args, std::int64_t t, std::int64_t value_row) {
  if (t >= args.tokens) return;
  for (std::int64_t column = 0; column < args.key_dim; column += 16) {
    __builtin_prefetch(args.key + t * args.qkv_stride + column);
    __builtin_prefetch(args.query + t * args.qkv_stride + column);
  }
  __builtin_prefetch(args.value + t * args.qkv_stride + value_row);
}

// `count` <= 16 value rows from value_row on, over all tokens.
template <class V, int fixed_key_dim>
void gdn_scan_group(const GdnScanArgs& args, std::int64_t value_row, std::int64_t count) {
  constexpr std::int64_t prefetch_distance = 4;  // tokens
  alignas(64) float output_lanes[gdn_group * strip_width] = {};
  alignas(64) float next_lanes[gdn_group * strip_width] = {};
  alignas(64) float sums[gdn_group];
  alignas(64) float delta[gdn_group];
  GdnSweep sweep{args.state + value_row * args.key_dim,
                 args.key_dim,
                 nullptr,
                 nullptr,
                 args.key,
                 args.decay[0],
                 delta,
                 output_lanes,
                 next_lanes};
  gdn_sweep<V, false, true, fixed_key_dim>(sweep, count);
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    gdn_prefetch(args, t + prefetch_distance, value_row);
    V::sum_16(next_lanes, sums);
    const auto value = Strip<V>::load_first(args.value + t * args.qkv_stride + value_row, count);
    const auto beta = Strip<V>::broadcast(args.beta[t * args.gate_stride]);
    (beta * (value - Strip<V>::load(sums))).store(delta);
    sweep.key = args.key + t * args.qkv_stride;
    sweep.query = args.query + t * args.qkv_stride;
    if (t + 1 < args.tokens) {
      sweep.next_key = sweep.key + args.qkv_stride;
      sweep.next_decay = args.decay[(t + 1) * args.gate_stride];
      gdn_sweep<V, true, true, fixed_key_dim>(sweep, count);
    } else {
      gdn_sweep<V, true, false, fixed_key_dim>(sweep, count);
    }
    V::sum_16(output_lanes, sums);
    Strip<V>::load(sums).store_first(args.out + t * args.out_stride + value_row, count);
  }
}

// The same arithmetic for any key_dim; fixed_key_dim only lets the compiler unroll.
template <class V, int fixed_key_dim>
void gdn_scan_with(const GdnScanArgs& args) {
  for (std::int64_t row = args.value_begin; row < args.value_end; row += gdn_group) {
    gdn_scan_group<V, fixed_key_dim>(args, row, smaller(gdn_group, args.value_end - row));
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
