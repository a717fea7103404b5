// cpu/matmul/plain.h -- bfloat16, float16 or float32 weights times float32 activations, float32 accumulation.
//
// An output is 16 running sums (columns k, k + 16, k + 32 ...; fused multiply-add) and then halves upon halves, so
// it depends neither on the rows beside it nor on the vector length.
#pragma once

#include "cpu/matmul/tile.h"

namespace lily::cpu {
namespace {

inline constexpr std::int64_t kPlainLanes = 16;

// 16 float32 as vectors of the instruction set.
template <class Isa>
struct Sixteen {
  static constexpr int count = static_cast<int>(kPlainLanes) / Isa::lanes;
  typename Isa::Float part[count];
};

template <class Isa>
inline float sum_of(const Sixteen<Isa>& v) {
  alignas(64) float lanes[kPlainLanes];
  unrolled<Sixteen<Isa>::count>([&](auto i) { Isa::store(lanes + i * Isa::lanes, v.part[i]); });
  for (int i = 0; i < 8; ++i) lanes[i] += lanes[i + 8];
  for (int i = 0; i < 4; ++i) lanes[i] += lanes[i + 4];
  return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

// sums[n][r] += weights[n] * x[r] for 16 columns.
template <class Isa, int Outputs, int Rows>
inline void add_columns(const std::byte* const (&weights)[Outputs], ElementType type, const float* const (&x)[Rows],
                        Sixteen<Isa> (&sums)[Outputs][Rows]) {
  unrolled<Sixteen<Isa>::count>([&](auto i) {
    typename Isa::Float values[Rows];
    unrolled<Rows>([&](auto r) { values[r] = Isa::load(x[r] + i * Isa::lanes); });
    unrolled<Outputs>([&](auto n) {
      const auto w = Isa::load_values(weights[n] + i * Isa::lanes * element_size(type), type);
      unrolled<Rows>([&](auto r) { sums[n][r].part[i] = Isa::fma(w, values[r], sums[n][r].part[i]); });
    });
  });
}

// The last columns, fewer than 16, from copies padded with zeros.
template <class Isa, int Outputs, int Rows>
inline void add_tail(const std::byte* const (&weights)[Outputs], ElementType type, const float* const (&x)[Rows],
                     std::int64_t columns, Sixteen<Isa> (&sums)[Outputs][Rows]) {
  std::byte padded_weights[Outputs][4 * kPlainLanes] = {};
  float padded_x[Rows][kPlainLanes] = {};
  const std::byte* weight_rows[Outputs];
  const float* x_rows[Rows];
  unrolled<Outputs>([&](auto n) {
    std::memcpy(padded_weights[n], weights[n], static_cast<std::size_t>(columns * element_size(type)));
    weight_rows[n] = padded_weights[n];
  });
  unrolled<Rows>([&](auto r) {
    std::memcpy(padded_x[r], x[r], static_cast<std::size_t>(columns) * sizeof(float));
    x_rows[r] = padded_x[r];
  });
  add_columns<Isa, Outputs, Rows>(weight_rows, type, x_rows, sums);
}

template <class Isa, ElementType Type, int Outputs, int Rows>
void plain_block(const MatmulArgs& args, std::int64_t row, std::int64_t first_input) {
  const Matrix& weight = *args.weight;
  const std::int64_t full = weight.columns / kPlainLanes * kPlainLanes;
  const std::byte* weights[Outputs];
  const float* x[Rows];
  unrolled<Outputs>([&](auto n) { weights[n] = weight.weight + (row + n) * weight.columns * element_size(Type); });
  unrolled<Rows>([&](auto r) {
    const std::int64_t m = first_input + r;
    x[r] = args.x_plain + (args.row_index != nullptr ? args.row_index[m] : m) * args.x_stride;
  });
  Sixteen<Isa> sums[Outputs][Rows];
  unrolled<Outputs>([&](auto n) {
    unrolled<Rows>([&](auto r) { unrolled<Sixteen<Isa>::count>([&](auto i) { sums[n][r].part[i] = Isa::zero(); }); });
  });
  for (std::int64_t k = 0; k < full; k += kPlainLanes) {
    add_columns<Isa, Outputs, Rows>(weights, Type, x, sums);
    unrolled<Outputs>([&](auto n) { weights[n] += kPlainLanes * element_size(Type); });
    unrolled<Rows>([&](auto r) { x[r] += kPlainLanes; });
  }
  if (full < weight.columns) add_tail<Isa, Outputs, Rows>(weights, Type, x, weight.columns - full, sums);
  unrolled<Outputs>([&](auto n) {
    unrolled<Rows>([&](auto r) { args.out[(first_input + r) * args.out_stride + row + n] = sum_of<Isa>(sums[n][r]); });
  });
}

// The outer loop is over activation rows, so that a block of them stays in the first-level cache.
template <class Isa, ElementType Type, int Outputs, int Rows>
void plain_rows(const MatmulArgs& args, std::int64_t first_input) {
  std::int64_t row = args.row_begin;
  for (; row + Outputs <= args.row_end; row += Outputs) plain_block<Isa, Type, Outputs, Rows>(args, row, first_input);
  for (; row < args.row_end; ++row) plain_block<Isa, Type, 1, Rows>(args, row, first_input);
}

template <class Isa, ElementType Type>
void plain_typed(const MatmulArgs& args) {
  std::int64_t m = 0;
  for (; m + 4 <= args.row_count; m += 4) plain_rows<Isa, Type, Isa::plain_outputs, 4>(args, m);
  switch (args.row_count - m) {
    case 3:
      return plain_rows<Isa, Type, Isa::plain_outputs, 3>(args, m);
    case 2:
      return plain_rows<Isa, Type, Isa::plain_outputs, 2>(args, m);
    case 1:
      return plain_rows<Isa, Type, 2 * Isa::plain_outputs, 1>(args, m);
    default:
      return;
  }
}

template <class Isa>
void matmul_plain(const MatmulArgs& args) {
  switch (args.weight->element_type) {
    case ElementType::bfloat16:
      return plain_typed<Isa, ElementType::bfloat16>(args);
    case ElementType::float16:
      return plain_typed<Isa, ElementType::float16>(args);
    case ElementType::float32:
      return plain_typed<Isa, ElementType::float32>(args);
  }
}

}  // namespace
}  // namespace lily::cpu
