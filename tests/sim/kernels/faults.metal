// faults.metal -- kernels with one planted fault each, and their repaired versions: every check must fire on the former
// and stay silent on the latter. All read x [128] and write y [128].
#include <metal_atomic>
#include <metal_simdgroup>
#include <metal_stdlib>
using namespace metal;

constant bool kRepaired [[function_constant(0)]];

[[kernel]] void missing_barrier(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  t[i] = x[i];
  if (kRepaired) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = t[127 - i];
}

// The threads of the next round overwrite what slower threads still read.
[[kernel]] void missing_second_barrier(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                       uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  float sum = 0.0f;
  for (uint round = 0; round < 3; round++) {
    t[i] = x[i] + float(round);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum += t[(i + 64) % 128];
    if (kRepaired) threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[i] = sum;
}

[[kernel]] void wrong_flags(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  t[i] = x[i];
  threadgroup_barrier(kRepaired ? mem_flags::mem_threadgroup : mem_flags::mem_device);
  y[i] = t[i ^ 64u];
}

[[kernel]] void wrong_flags_device(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                   uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[i];
  threadgroup_barrier(kRepaired ? mem_flags::mem_device : mem_flags::mem_threadgroup);
  const float other = y[i ^ 64u];
  threadgroup_barrier(mem_flags::mem_device);
  y[i] = other;
}

[[kernel]] void divergent_barrier(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  if (i < 64 || kRepaired) threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = x[i];
}

[[kernel]] void divergent_simd(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                               uint i [[thread_index_in_threadgroup]]) {
  float s = 0.0f;
  if (i % 3u == 0u && !kRepaired) {
    s = simd_sum(x[i]);
  } else {
    s = simd_max(x[i]);
  }
  y[i] = s;
}

[[kernel]] void simd_after_return(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  if (i >= 100 && !kRepaired) return;
  y[i] = simd_sum(x[i]);
}

[[kernel]] void barrier_after_return(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                     uint i [[thread_index_in_threadgroup]]) {
  if (i >= 96 && !kRepaired) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = x[i];
}

// Simdgroup 0 waits at a simdgroup operation for a lane that waits at a barrier.
[[kernel]] void deadlock(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                         uint i [[thread_index_in_threadgroup]]) {
  float s = x[i];
  if (i == 5 && !kRepaired) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
  } else {
    s = simd_sum(s);
  }
  y[i] = s;
}

[[kernel]] void lock_step(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  t[i] = x[i];
  if (kRepaired) simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = t[i ^ 1u];
}

// A simdgroup operation does not order memory.
[[kernel]] void simd_as_fence(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  t[i] = x[i];
  const float s = simd_sum(x[i]);
  if (kRepaired) simdgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = t[i ^ 1u] + s;
}

[[kernel]] void uninitialised_threadgroup(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                          uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[128];
  if (i < 100 || kRepaired) t[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = t[i];
}

// y[i] itself is read before anything wrote it.
[[kernel]] void uninitialised_device(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                     uint i [[thread_index_in_threadgroup]]) {
  if (kRepaired) y[i] = 0.0f;
  y[i] = y[i] + x[i];
}

[[kernel]] void past_the_end(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                             uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[kRepaired ? min(i + 1, 127u) : i + 1];
}

[[kernel]] void write_past_the_end(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                   uint i [[thread_index_in_threadgroup]]) {
  y[kRepaired ? i : i + 1] = x[i];
}

[[kernel]] void before_the_beginning(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                     uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[kRepaired ? int(i) : int(i) - 1];
}

[[kernel]] void past_threadgroup_array(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                       uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[100];
  threadgroup float other[28];
  if (i < 100) {
    t[i] = x[i];
  } else if (kRepaired) {
    other[i - 100] = x[i];
  } else {
    threadgroup float* beyond = t;
    beyond[i] = x[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = i < 100 ? t[i] : other[i - 100];
}

[[kernel]] void past_register_array(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                    uint i [[thread_index_in_threadgroup]]) {
  float values[4];
  for (uint k = 0; k < 4; k++) values[k] = x[i] + float(k);
  y[i] = values[kRepaired ? i % 4 : i % 5];
}

[[kernel]] void misaligned_vector(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  const uint at = kRepaired ? (i % 31) * 4 : i % 31 + 1;
  const float4 v = *(device const float4*)(x + at);
  y[i] = v.x + v.w;
}

[[kernel]] void shift_too_far(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[i] + float(1u << (kRepaired ? i % 32 : i));
}

[[kernel]] void division_by_zero(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                 uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[i] + float(100u / (kRepaired ? i + 1 : i));
}

[[kernel]] void remainder_of_zero(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                  uint i [[thread_index_in_threadgroup]]) {
  y[i] = x[i] + float(100 % (kRepaired ? int(i) + 1 : int(i)));
}

[[kernel]] void too_much_memory(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                                uint i [[thread_index_in_threadgroup]]) {
  threadgroup float half_of_it[4096];
  half_of_it[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = half_of_it[i ^ 1u];
  if (!kRepaired) {
    threadgroup float rest[4097];
    rest[i] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] += rest[i ^ 1u];
  }
}

// Launched with four threadgroups of 32.
[[kernel]] void shared_word(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  y[kRepaired ? i : i % 64] = x[i];
}

[[kernel]] void shared_word_atomics(device const float* x [[buffer(0)]], device atomic_float* y [[buffer(1)]],
                                    uint i [[thread_position_in_grid]]) {
  if (kRepaired) {
    atomic_fetch_add_explicit(&y[i % 4], x[i], memory_order_relaxed);
  } else {
    device float* plain = (device float*)y;
    plain[i % 4] += x[i];
  }
}

// A stack of a megabyte.
[[kernel]] void deep_stack(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                           uint i [[thread_index_in_threadgroup]]) {
  if (kRepaired) {
    y[i] = x[i];
    return;
  }
  float values[262144];
  for (uint k = 0; k < 262144; k++) values[k] = x[(i + k) % 128];
  y[i] = values[uint(x[i]) % 262144];
}

// Plain copies, for stages: one per half of y, or overlapping.
[[kernel]] void copy_values(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  y[i] = x[i];
}
