// cpu/attention_block.cpp -- gated grouped-query attention with partial rotary positions.
#include <algorithm>
#include <cmath>

#include "cpu/cpu_backend.h"

namespace lily::cpu {
namespace {

// Query rows (positions x heads that share a key/value head) that one task attends at once: what they hold fits a
// second-level cache of 1 MB, and with many threads each has a few tasks.
constexpr std::int64_t kFewestTaskQueryRows = 128;
constexpr std::int64_t kMostTaskQueryRows = 256;
// Query heads of one position that a task attends at least: they share what is read, and the kernel's registers.
constexpr std::int64_t kTaskHeads = 4;

}  // namespace

void CpuBackend::prepare_rope(std::int64_t position) {
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  for_rows(0, rows_, [&](std::int64_t row, std::int64_t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position + row) * rope_frequency_[static_cast<std::size_t>(i)];
      rope_cosine_[row * half + i] = static_cast<float>(std::cos(angle));
      rope_sine_[row * half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

// Normalises and rotates the queries and keys of one row, scales the queries, and stores key and value in the cache.
void CpuBackend::prepare_query_key_value(const AttentionWeights& attention, KvCache& cache, std::int64_t position,
                                         std::int64_t row, std::int64_t first_needed_row) {
  const std::int64_t head_dim = config_.head_dim;
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const float* cosine = rope_cosine_ + row * half;
  const float* sine = rope_sine_ + row * half;
  for (std::int64_t head = 0; head < config_.num_key_value_heads; ++head) {
    float* key = key_ + (row * config_.num_key_value_heads + head) * head_dim;
    const float* value = value_ + (row * config_.num_key_value_heads + head) * head_dim;
    kernels_.rms_norm(key, attention.k_norm.data(), head_dim, eps, key);
    kernels_.rope(key, 2 * half, cosine, sine);
    kernels_.store_kv(key, head_dim, kv_type_, cache.key(position + row, head));
    kernels_.store_kv(value, head_dim, kv_type_, cache.value(position + row, head));
  }
  if (row < first_needed_row) return;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (std::int64_t head = 0; head < config_.num_attention_heads; ++head) {
    float* query = query_ + ((row - first_needed_row) * config_.num_attention_heads + head) * 2 * head_dim;
    kernels_.rms_norm(query, attention.q_norm.data(), head_dim, eps, query);
    kernels_.rope(query, 2 * half, cosine, sine);
    for (std::int64_t i = 0; i < head_dim; ++i) query[i] *= scale;
  }
}

// The output gate included.
void CpuBackend::attend(KvCache& cache, std::int64_t position, const AttentionTask& task, std::int64_t first_needed_row,
                        std::int64_t worker) {
  const std::int64_t head_dim = config_.head_dim;
  const std::int64_t heads = config_.num_attention_heads;
  const std::int64_t key_value_head = task.head_begin / (heads / config_.num_key_value_heads);
  WorkerScratch& own = scratch(worker);
  own.queries.clear();
  own.outputs.clear();
  own.visible.clear();
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    for (std::int64_t head = task.head_begin; head < task.head_end; ++head) {
      const std::int64_t index = (row - first_needed_row) * heads + head;
      own.queries.push_back(query_ + index * 2 * head_dim);
      own.outputs.push_back(mixed_ + index * head_dim);
      own.visible.push_back(position + row + 1);
    }
  }
  const auto count = static_cast<std::int64_t>(own.queries.size());
  cache.spans(key_value_head, position + task.row_end, own.spans);
  own.attention.reserve(static_cast<std::int64_t>(kernels_.attention_scratch_bytes(count, head_dim)));
  kernels_.attention({.rows = count,
                      .head_dim = head_dim,
                      .query = own.queries.data(),
                      .out = own.outputs.data(),
                      .visible = own.visible.data(),
                      .spans = own.spans.data(),
                      .span_count = static_cast<std::int64_t>(own.spans.size()),
                      .kv_type = kv_type_,
                      .scratch = own.attention.data()});
  for (std::size_t i = 0; i < own.outputs.size(); ++i) {
    kernels_.sigmoid_multiply(own.outputs[i], own.queries[i] + head_dim, head_dim);
  }
}

void CpuBackend::attention_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) {
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const AttentionWeights& attention = *weights.attention;
  KvCache& cache = static_cast<CpuSessionState&>(state).kv_cache(layer);
  const std::int64_t position = state.position();
  const std::int64_t query_dim = config_.num_attention_heads * config_.head_dim;
  const std::int64_t key_dim = config_.num_key_value_heads * config_.head_dim;
  const std::int64_t needed = rows_ - first_needed_row;
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  workspace_.divide({{&query_, needed * 2 * query_dim},
                     {&key_, rows_ * key_dim},
                     {&value_, rows_ * key_dim},
                     {&mixed_, needed * query_dim},
                     {&rope_cosine_, rows_ * half},
                     {&rope_sine_, rows_ * half}});
  cache.prepare(position, position + rows_);

  const Product key{&attention.k_proj, key_};
  const Product value{&attention.v_proj, value_};
  const Product query{&attention.q_proj, query_};
  normalize_rows(0, weights.input_layernorm, {&attention.k_proj, &attention.v_proj, &attention.q_proj});
  if (first_needed_row == 0) {
    multiply({query, key, value}, input_);
  } else {
    multiply({key, value}, input_);
    normalize_rows(first_needed_row, weights.input_layernorm, {&attention.q_proj});
    multiply({query}, input_);
  }
  prepare_rope(position);
  for_rows(0, rows_, [&](std::int64_t row, std::int64_t) {
    prepare_query_key_value(attention, cache, position, row, first_needed_row);
  });
  if (needed == 0) return;

  const std::int64_t heads_per_key = config_.num_attention_heads / config_.num_key_value_heads;
  const std::int64_t task_query_rows =
      std::clamp(needed * config_.num_attention_heads / (8 * pool_.size()), kFewestTaskQueryRows, kMostTaskQueryRows);
  const std::int64_t task_rows = std::max<std::int64_t>(1, task_query_rows / heads_per_key);
  const std::int64_t row_tasks = (needed + task_rows - 1) / task_rows;
  // With more threads than tasks the heads that share keys and values are divided too.
  const std::int64_t idle = pool_.size() / (row_tasks * config_.num_key_value_heads);
  const std::int64_t parts = std::clamp(heads_per_key / kTaskHeads, std::int64_t{1}, std::max<std::int64_t>(1, idle));
  const std::int64_t head_tasks = config_.num_key_value_heads * parts;
  pool_.parallel_for(row_tasks * head_tasks, [&](std::int64_t index, std::int64_t worker) {
    // Late rows see the most positions: take them first, so that the last tasks are short.
    const std::int64_t begin = first_needed_row + (row_tasks - 1 - index / head_tasks) * task_rows;
    const std::int64_t first_head = index % head_tasks / parts * heads_per_key;
    const std::int64_t part = index % head_tasks % parts;
    const AttentionTask task{first_head + heads_per_key * part / parts, first_head + heads_per_key * (part + 1) / parts,
                             begin, std::min(begin + task_rows, rows_)};
    attend(cache, position, task, first_needed_row, worker);
  });
  output_.bind(mixed_, needed, query_dim, {&attention.o_proj});
  quantize_all(output_);
  multiply({{&attention.o_proj, hidden_row(first_needed_row), true}}, output_);
}

}  // namespace lily::cpu
