// cpu/kernels/float_table.h -- the float kernels over one vector class, entered in a kernel table.
#pragma once

#include "cpu/kernels.h"
#include "cpu/kernels/attention.h"
#include "cpu/kernels/causal_conv.h"
#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/gdn_scan.h"
#include "cpu/kernels/norm.h"
#include "cpu/kernels/rope.h"

namespace lily::cpu {
namespace {

template <class V>
void fill_float(KernelTable& table) {
  table.rms_norm = rms_norm<V>;
  table.rms_norm_gated = rms_norm_gated<V>;
  table.l2_normalize = l2_normalize<V>;
  table.silu_multiply = silu_multiply<V>;
  table.sigmoid_multiply = sigmoid_multiply<V>;
  table.axpy = axpy<V>;
  table.softmax = softmax<V>;
  table.rope = rope<V>;
  table.causal_conv_silu = causal_conv_silu<V>;
  table.gdn_scan = gdn_scan<V>;
  table.attention_scratch_bytes = attention_scratch_bytes;
  table.attention = attention<V>;
  table.store_kv = store_kv<V>;
}

}  // namespace
}  // namespace lily::cpu
