// cpu/attention_block.cpp -- projections, rotary positions, the cache's new rows, and attention split into tasks.
#include "cpu/attention_block.h"

#include <algorithm>
#include <cmath>

namespace lily::cpu {
namespace {

// Query rows (positions x heads that share a key/value head) of one task: their data fits in a second-level cache of 1
// MB, and even with many threads each thread has a few tasks.
constexpr std::int64_t kFewestTaskQueryRows = 128;
constexpr std::int64_t kMostTaskQueryRows = 256;
// Minimum of query heads of one position in a task: they share cache reads and the kernel's registers.
constexpr std::int64_t kTaskHeads = 4;

}  // namespace

AttentionBlock::AttentionBlock(const ModelConfig& config, Compute& compute, KvType kv_type)
    : config_(config), compute_(compute), kv_type_(kv_type) {
  for (std::int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    rope_frequency_.push_back(
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  }
}

void AttentionBlock::compute_rotations(const Arrays& arrays) {
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  compute_.for_rows(0, arrays.rows, [&](std::int64_t row) {
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(arrays.position + row) * rope_frequency_[static_cast<std::size_t>(i)];
      arrays.cosine[row * half + i] = static_cast<float>(std::cos(angle));
      arrays.sine[row * half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

// Normalises and rotates the queries and keys of one row, scales the queries, and stores key and value in the cache.
void AttentionBlock::prepare_query_key_value(const AttentionWeights& attention, KvCache& cache, const Arrays& arrays,
                                             std::int64_t row) const {
  const KernelTable& kernels = compute_.kernels();
  const std::int64_t head_dim = config_.head_dim;
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const float* cosine = arrays.cosine + row * half;
  const float* sine = arrays.sine + row * half;
  for (std::int64_t head = 0; head < config_.num_key_value_heads; ++head) {
    float* key = arrays.key + (row * config_.num_key_value_heads + head) * head_dim;
    const float* value = arrays.value + (row * config_.num_key_value_heads + head) * head_dim;
    kernels.rms_norm(key, attention.k_norm.data(), head_dim, eps, key);
    kernels.rope(key, 2 * half, cosine, sine);
    kernels.store_kv(key, head_dim, kv_type_, cache.key(arrays.position + row, head));
    kernels.store_kv(value, head_dim, kv_type_, cache.value(arrays.position + row, head));
  }
  if (row < arrays.first_needed_row) return;
  const float scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
  for (std::int64_t head = 0; head < config_.num_attention_heads; ++head) {
    float* query = arrays.query + ((row - arrays.first_needed_row) * config_.num_attention_heads + head) * 2 * head_dim;
    kernels.rms_norm(query, attention.q_norm.data(), head_dim, eps, query);
    kernels.rope(query, 2 * half, cosine, sine);
    for (std::int64_t i = 0; i < head_dim; ++i) query[i] *= scale;
  }
}

// The output gate included.
void AttentionBlock::attend(KvCache& cache, const Arrays& arrays, const Task& task, std::int64_t worker) const {
  const KernelTable& kernels = compute_.kernels();
  const std::int64_t head_dim = config_.head_dim;
  const std::int64_t heads = config_.num_attention_heads;
  const std::int64_t key_value_head = task.head_begin / (heads / config_.num_key_value_heads);
  WorkerScratch& own = compute_.scratch(worker);
  own.queries.clear();
  own.outputs.clear();
  own.visible.clear();
  for (std::int64_t row = task.row_begin; row < task.row_end; ++row) {
    for (std::int64_t head = task.head_begin; head < task.head_end; ++head) {
      const std::int64_t index = (row - arrays.first_needed_row) * heads + head;
      own.queries.push_back(arrays.query + index * 2 * head_dim);
      own.outputs.push_back(arrays.mixed + index * head_dim);
      own.visible.push_back(arrays.position + row + 1);
    }
  }
  const auto count = static_cast<std::int64_t>(own.queries.size());
  cache.spans(key_value_head, arrays.position + task.row_end, own.spans);
  own.attention.reserve(static_cast<std::int64_t>(kernels.attention_scratch_bytes(count, head_dim)));
  kernels.attention({.rows = count,
                     .head_dim = head_dim,
                     .query = own.queries.data(),
                     .out = own.outputs.data(),
                     .visible = own.visible.data(),
                     .spans = own.spans.data(),
                     .span_count = static_cast<std::int64_t>(own.spans.size()),
                     .kv_type = kv_type_,
                     .scratch = own.attention.data()});
  for (std::size_t i = 0; i < own.outputs.size(); ++i) {
    kernels.sigmoid_multiply(own.outputs[i], own.queries[i] + head_dim, head_dim);
  }
}

void AttentionBlock::attend_all(KvCache& cache, const Arrays& arrays) {
  const std::int64_t needed = arrays.rows - arrays.first_needed_row;
  const std::int64_t threads = compute_.threads();
  const std::int64_t heads_per_key = config_.num_attention_heads / config_.num_key_value_heads;
  const std::int64_t task_query_rows =
      std::clamp(needed * config_.num_attention_heads / (8 * threads), kFewestTaskQueryRows, kMostTaskQueryRows);
  const std::int64_t task_rows = std::max<std::int64_t>(1, task_query_rows / heads_per_key);
  const std::int64_t row_tasks = (needed + task_rows - 1) / task_rows;
  // With more threads than tasks the heads that share keys and values are divided too.
  const std::int64_t idle = threads / (row_tasks * config_.num_key_value_heads);
  const std::int64_t parts = std::clamp(heads_per_key / kTaskHeads, std::int64_t{1}, std::max<std::int64_t>(1, idle));
  const std::int64_t head_tasks = config_.num_key_value_heads * parts;
  compute_.parallel_for(row_tasks * head_tasks, [&](std::int64_t index, std::int64_t worker) {
    // Late rows see the most positions: they go first, so that the last tasks are short.
    const std::int64_t begin = arrays.first_needed_row + (row_tasks - 1 - index / head_tasks) * task_rows;
    const std::int64_t first_head = index % head_tasks / parts * heads_per_key;
    const std::int64_t part = index % head_tasks % parts;
    const Task task{first_head + heads_per_key * part / parts, first_head + heads_per_key * (part + 1) / parts, begin,
                    std::min(begin + task_rows, arrays.rows)};
    attend(cache, arrays, task, worker);
  });
}

AttentionBlock::Arrays AttentionBlock::allocate(Chunk& chunk, std::int64_t position,
                                                std::int64_t first_needed_row) const {
  const std::int64_t rows = chunk.rows();
  const std::int64_t needed = rows - first_needed_row;
  const std::int64_t query_dim = config_.num_attention_heads * config_.head_dim;
  const std::int64_t key_dim = config_.num_key_value_heads * config_.head_dim;
  const auto half = static_cast<std::int64_t>(rope_frequency_.size());
  Arrays arrays{.rows = rows, .first_needed_row = first_needed_row, .position = position};
  chunk.workspace().divide({{&arrays.query, needed * 2 * query_dim},
                            {&arrays.key, rows * key_dim},
                            {&arrays.value, rows * key_dim},
                            {&arrays.mixed, needed * query_dim},
                            {&arrays.cosine, rows * half},
                            {&arrays.sine, rows * half}});
  return arrays;
}

void AttentionBlock::project(const LayerWeights& weights, const Arrays& arrays, Chunk& chunk) {
  const AttentionWeights& attention = *weights.attention;
  const Product key{&attention.k_proj, arrays.key};
  const Product value{&attention.v_proj, arrays.value};
  const Product query{&attention.q_proj, arrays.query};
  chunk.normalize(0, arrays.rows, weights.input_layernorm, {&attention.k_proj, &attention.v_proj, &attention.q_proj});
  if (arrays.first_needed_row == 0) {
    compute_.multiply({query, key, value}, chunk.input());
  } else {
    compute_.multiply({key, value}, chunk.input());
    chunk.normalize(arrays.first_needed_row, arrays.rows, weights.input_layernorm, {&attention.q_proj});
    compute_.multiply({query}, chunk.input());
  }
}

void AttentionBlock::run(const LayerWeights& weights, KvCache& cache, std::int64_t position, Chunk& chunk,
                         std::int64_t first_needed_row) {
  const AttentionWeights& attention = *weights.attention;
  const Arrays arrays = allocate(chunk, position, first_needed_row);
  cache.prepare(position, position + arrays.rows);
  project(weights, arrays, chunk);
  compute_rotations(arrays);
  compute_.for_rows(0, arrays.rows, [&](std::int64_t row) { prepare_query_key_value(attention, cache, arrays, row); });
  const std::int64_t needed = arrays.rows - first_needed_row;
  if (needed == 0) return;
  attend_all(cache, arrays);
  Activations& output = chunk.output();
  output.bind(arrays.mixed, needed, config_.num_attention_heads * config_.head_dim, {&attention.o_proj});
  compute_.quantize(output);
  compute_.multiply({{&attention.o_proj, chunk.hidden(first_needed_row), true}}, output);
}

}  // namespace lily::cpu
