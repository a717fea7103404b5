// cuda/msl/tensor_core.h -- the warp-wide instructions of tensor cores that kernels need, for bfloat and half with
// float sums, and the loads that bring tiles of threadgroup memory into their layout.
//
// Lane l holds, of an 8x8 piece, columns 2 (l % 4) and the next of row l / 4; of the second factor the same,
// transposed.
#pragma once

#include "device/msl/float16.h"

namespace metal {

template <class T>
struct TensorCore;

#define LILY_TENSOR_CORE(T, name)                                                         \
  template <>                                                                             \
  struct TensorCore<T> {                                                                  \
    /* sums [16, 8] += a [16, 16] b [16, 8]; a in pieces (0,0) (8,0) (0,8) (8,8). */      \
    LILY_FN static void multiply_16x8x16(float* sums, const uint* a, const uint* b) {     \
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                 \
                   ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));   \
    }                                                                                     \
    /* sums [16, 8] += a [16, 8] b [8, 8]. */                                             \
    LILY_FN static void multiply_16x8x8(float* sums, const uint* a, uint b) {             \
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." name "." name                  \
                   ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"             \
                   : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
                   : "r"(a[0]), "r"(a[1]), "r"(b));                                       \
    }                                                                                     \
  };
LILY_TENSOR_CORE(bfloat, "bf16")
LILY_TENSOR_CORE(half, "f16")
#undef LILY_TENSOR_CORE

LILY_FN uint lily_transpose_8x8(uint pair) {
  uint transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Four 8x8 pieces: lane l gives the address of row l % 8 of piece l / 8, aligned to 16 bytes.
template <bool TRANSPOSED = false>
LILY_FN void lily_load_pieces(uint* pieces, const void* row) {
  const uint address = static_cast<uint>(__cvta_generic_to_shared(row));
  if (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(pieces[0]), "=r"(pieces[1]), "=r"(pieces[2]), "=r"(pieces[3])
                 : "r"(address)
                 : "memory");
    return;
  }
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(pieces[0]), "=r"(pieces[1]), "=r"(pieces[2]), "=r"(pieces[3])
               : "r"(address)
               : "memory");
}

}  // namespace metal
