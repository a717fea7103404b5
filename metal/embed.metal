// embed.metal -- the rows of the embedding matrix that belong to token ids, dequantized.
//
// ids int [rows], matrix [vocab_size, hidden_size] (codes with scales and biases, or bf16), hidden f32 [rows,
// hidden_size]. A threadgroup makes one row, a thread the values of whole words.
#include "lily_common.h"

constant int kBits [[function_constant(kBitsIndex)]];
constant int kGroupSize [[function_constant(kGroupSizeIndex)]];

// The 32 / BITS values of a word. A plain bf16 word is two values, and scale and bias are not used.
template <int BITS>
METAL_FUNC void store_values(uint word, float scale, float bias, device float* to) {
  if (BITS == 16) {
    *(device float2*)to = float2(as_type<float>(word << 16), as_type<float>(word & 0xffff0000u));
  } else {
    const uint mask = (1u << BITS) - 1u;
    UNROLL for (int i = 0; i < 32 / BITS; i += 4) {
      float4 codes;
      UNROLL for (int j = 0; j < 4; j++) codes[j] = float((word >> (BITS * (i + j))) & mask);
      *(device float4*)(to + i) = fma(codes, float4(scale), float4(bias));
    }
  }
}

template <int BITS>
METAL_FUNC void embed_row(device const uint* codes, device const bfloat* scales, device const bfloat* biases,
                          device float* to, uint id, uint columns, uint group_size, uint thread_index) {
  const uint words = columns * BITS / 32u;
  const uint groups = columns / group_size;
  for (uint i = thread_index; i < words; i += kRowThreads) {
    const uint column = i * (32u / BITS);
    float scale = 1.0f;
    float bias = 0.0f;
    if (BITS < 16) {
      scale = float(scales[id * groups + column / group_size]);
      bias = float(biases[id * groups + column / group_size]);
    }
    store_values<BITS>(codes[id * words + i], scale, bias, to + column);
  }
}

// hidden[r] = matrix[ids[r]], or zeros for an id that is not in the vocabulary. A threadgroup works on one row.
[[kernel, max_total_threads_per_threadgroup(kRowThreads)]] void embed_rows(
    device const int* ids [[buffer(0)]],         // [rows]
    device const uint* codes [[buffer(1)]],      // matrix [vocab_size, hidden_size]
    device const bfloat* scales [[buffer(2)]],
    device const bfloat* biases [[buffer(3)]],
    device float* hidden [[buffer(4)]],          // [rows, hidden_size]
    constant EmbedArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
  const int id = ids[row];
  device float* to = hidden + row * args.hidden_size;
  if (id < 0 || uint(id) >= args.vocab_size) {
    for (uint i = thread_index; i < args.hidden_size; i += kRowThreads) to[i] = 0.0f;
  } else if (kBits == 4) {
    embed_row<4>(codes, scales, biases, to, uint(id), args.hidden_size, uint(kGroupSize), thread_index);
  } else if (kBits == 8) {
    embed_row<8>(codes, scales, biases, to, uint(id), args.hidden_size, uint(kGroupSize), thread_index);
  } else {
    embed_row<16>(codes, scales, biases, to, uint(id), args.hidden_size, uint(kGroupSize), thread_index);
  }
}
