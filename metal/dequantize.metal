// dequantize.metal -- a whole quantized matrix as bf16 in device memory, instead of in the tiles of a product.
//
// codes [rows_out, columns] of 4 or 8 bits, lowest bits first in a word, scales and biases bf16 [rows_out, columns /
// group_size] to out bf16 [rows_out, columns] = code * scale + bias. A thread makes one element.
#include "lily_common.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];

[[kernel, max_total_threads_per_threadgroup(kElementThreads)]] void dequantize_matrix(
    device const uint* codes [[buffer(0)]],     // [rows_out, columns * kBits / 32]
    device const bfloat* scales [[buffer(1)]],  // [rows_out, columns / kGroupSize]
    device const bfloat* biases [[buffer(2)]],
    device bfloat* out [[buffer(3)]],           // [rows_out, columns]
    constant GemmArgs& args [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const uint column = group.y * kElementThreads + thread_index;
  if (column >= args.columns) return;
  const ulong first = ulong(group.x) * args.columns;  // of this row
  const uint codes_a_word = uint(32 / kBits);
  const uint word = codes[(first + column) / codes_a_word];
  const uint code = (word >> (column % codes_a_word * uint(kBits))) & ((1u << kBits) - 1u);
  const ulong at = (first + column) / uint(kGroupSize);
  out[first + column] = bfloat(float(code) * float(scales[at]) + float(biases[at]));
}
