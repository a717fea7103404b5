// cpu/backend.cpp -- steps shared by the blocks: normalisation, parallel products, head and scoring.
#include "cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "cpu/cpu_backend.h"
#include "cpu/dispatch.h"
#include "engine/default_floats.h"
#include "engine/error.h"
#include "engine/non_finite.h"
#include "engine/sampler.h"

namespace lily::cpu {
namespace {

// Rows of a prompt whose logits are held at once while scoring.
constexpr std::int64_t kScoreRows = 32;
constexpr std::int64_t kDefaultChunk = 512;

KvType parse_kv_type(const std::string& name) {
  if (name == "float16") return KvType::float16;
  if (name == "bfloat16") return KvType::bfloat16;
  throw Error(ErrorKind::config, "kv_cache_type must be \"float16\" or \"bfloat16\", not \"" + name + "\"");
}

std::int64_t widest_columns(const ModelConfig& config) {
  return std::max({config.hidden_size, config.linear_value_dim(), config.num_attention_heads * config.head_dim,
                   config.moe_intermediate_size, config.shared_expert_intermediate_size});
}

}  // namespace

std::unique_ptr<Backend> make_backend(const ModelConfig& config, const ModelWeights& weights, EngineOptions& options) {
  if (options.threads == 0) options.threads = physical_core_count();
  if (options.threads < 0 || options.threads > 1024) {
    throw Error(ErrorKind::config, "threads must be between 1 and 1024 (0: one for each physical core)");
  }
  if (options.prefill_chunk == 0) options.prefill_chunk = kDefaultChunk;
  options.prefill_chunk = std::min(options.prefill_chunk, options.max_context);
  const KernelTable& kernels = select_kernels(options.cpu_isa);
  options.cpu_isa = kernels.name;
  const DefaultFloats floats;  // for the frequencies of rotary positions
  return std::make_unique<CpuBackend>(config, weights, kernels, options.threads, options.prefill_chunk,
                                      parse_kv_type(options.kv_cache_type));
}

CpuBackend::CpuBackend(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels,
                       std::int64_t threads, std::int64_t max_chunk_rows, KvType kv_type)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      pool_(threads),
      max_chunk_rows_(max_chunk_rows),
      kv_type_(kv_type),
      scratch_(static_cast<std::size_t>(threads)) {
  const auto bytes = static_cast<std::int64_t>(kernels.matmul_scratch_bytes(widest_columns(config)));
  for (WorkerScratch& worker : scratch_) worker.matmul.reserve(bytes);
  for (std::int64_t i = 0; i < config.rotary_dim / 2; ++i) {
    rope_frequency_.push_back(
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rotary_dim)));
  }
}

std::unique_ptr<SessionState> CpuBackend::create_state() const {
  return std::make_unique<CpuSessionState>(config_, kv_type_);
}

std::size_t CpuBackend::scratch_bytes() const {
  std::size_t total = hidden_.bytes() + normalized_.bytes() + workspace_.bytes();
  for (const Activations* activations : {&input_, &output_, &shared_output_}) {
    total += activations->bytes();
  }
  for (const WorkerScratch& worker : scratch_) {
    total += worker.matmul.bytes() + worker.attention.bytes() + worker.tile.bytes();
  }
  return total;
}

void CpuBackend::begin_chunk(std::span<const std::int32_t> ids) {
  rows_ = static_cast<std::int64_t>(ids.size());
  hidden_.reserve(rows_ * config_.hidden_size);
  normalized_.reserve(rows_ * config_.hidden_size);
  for_rows(0, rows_, [&](std::int64_t row, std::int64_t) {
    dequantize_row(weights_.embed_tokens, ids[static_cast<std::size_t>(row)], hidden_row(row));
  });
}

void CpuBackend::normalize_rows(std::int64_t begin, const std::vector<float>& weight,
                                std::initializer_list<const Matrix*> matrices) {
  const std::int64_t hidden = config_.hidden_size;
  input_.bind(normalized_.data(), rows_ - begin, hidden, matrices);
  for_rows(begin, rows_, [&](std::int64_t row, std::int64_t) {
    kernels_.rms_norm(hidden_row(row), weight.data(), hidden, static_cast<float>(config_.rms_norm_eps),
                      input_.row(row - begin));
    input_.quantize(kernels_, row - begin);
  });
}

void CpuBackend::quantize_all(Activations& activations) {
  for_rows(0, activations.row_count(), [&](std::int64_t row, std::int64_t) { activations.quantize(kernels_, row); });
}

void CpuBackend::multiply_block(const WeightBlock& block, const Activations& x, const std::int32_t* row_index,
                                std::int64_t row_count, float* out, std::int64_t out_stride, std::int64_t worker) {
  MatmulArgs args{.weight = &block.weight,
                  .row_begin = block.begin,
                  .row_end = block.end,
                  .row_index = row_index,
                  .row_count = row_count,
                  .out = out,
                  .out_stride = out_stride,
                  .scratch = scratch(worker).matmul.data(),
                  .next_weight = block.next_weight,
                  .next_row = block.next_row};
  x.describe(args);
  if (block.weight.is_affine()) {
    kernels_.matmul_affine(args);
  } else {
    kernels_.matmul_plain(args);
  }
}

// Weight rows of a task when `row_count` activation rows meet `weight_rows` in all: at least eight tasks a thread.
std::int64_t CpuBackend::task_rows(std::int64_t weight_rows, std::int64_t row_count) const {
  const std::int64_t tasks = weight_rows / (8 * pool_.size() * kTaskRows);
  return std::clamp(tasks * kTaskRows, kTaskRows, row_count > kReadingRows ? kMaxTaskRows : kMaxReadingRows);
}

void CpuBackend::multiply(std::initializer_list<Product> products, const Activations& x) {
  const std::int64_t count = x.row_count();
  if (count == 0) return;
  std::int64_t weight_rows = 0;
  for (const Product& product : products) weight_rows += product.weight->rows;
  const std::int64_t task_size = task_rows(weight_rows, count);
  const auto task_count = [&](const Product& product) { return (product.weight->rows + task_size - 1) / task_size; };
  std::int64_t tasks = 0;
  for (const Product& product : products) tasks += task_count(product);
  pool_.parallel_for(tasks, [&](std::int64_t task, std::int64_t worker) {
    const Product* product = products.begin();
    for (; task >= task_count(*product); ++product) task -= task_count(*product);
    const Matrix& weight = *product->weight;
    WeightBlock block{weight, task * task_size, std::min((task + 1) * task_size, weight.rows)};
    if (block.end < weight.rows) {
      block.next_weight = &weight;
      block.next_row = block.end;
    } else if (product + 1 != products.end()) {
      block.next_weight = (product + 1)->weight;
    }
    if (!product->accumulate) {
      multiply_block(block, x, nullptr, count, product->out, weight.rows, worker);
      return;
    }
    AlignedBuffer<float>& tile = scratch(worker).tile;
    tile.reserve(count * task_size);
    multiply_block(block, x, nullptr, count, tile.data() - block.begin, task_size, worker);
    for (std::int64_t row = 0; row < count; ++row) {
      kernels_.axpy(1.0F, tile.data() + row * task_size, block.end - block.begin,
                    product->out + row * weight.rows + block.begin);
    }
  });
}

void CpuBackend::head(std::int64_t row, std::span<float> logits) {
  const std::int64_t hidden = config_.hidden_size;
  input_.bind(normalized_.data(), 1, hidden, {&weights_.lm_head});
  kernels_.rms_norm(hidden_row(row), weights_.norm.data(), hidden, static_cast<float>(config_.rms_norm_eps),
                    input_.row(0));
  input_.quantize(kernels_, 0);
  multiply({{&weights_.lm_head, logits.data()}}, input_);
}

void CpuBackend::score(std::span<const std::int32_t> targets, std::span<float> log_probabilities,
                       std::span<std::int32_t> argmax) {
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t vocab = config_.vocab_size;
  const auto total = static_cast<std::int64_t>(targets.size());
  workspace_.divide({{&score_logits_, std::min(kScoreRows, total) * vocab}});
  for (std::int64_t first = 0; first < total; first += kScoreRows) {
    const std::int64_t count = std::min(kScoreRows, total - first);
    input_.bind(normalized_.data(), count, hidden, {&weights_.lm_head});
    for_rows(0, count, [&](std::int64_t row, std::int64_t) {
      kernels_.rms_norm(hidden_row(first + row), weights_.norm.data(), hidden, static_cast<float>(config_.rms_norm_eps),
                        input_.row(row));
      input_.quantize(kernels_, row);
    });
    multiply({{&weights_.lm_head, score_logits_}}, input_);
    for_rows(0, count, [&](std::int64_t row, std::int64_t) {
      const std::span<const float> logits(score_logits_ + row * vocab, static_cast<std::size_t>(vocab));
      const auto index = static_cast<std::size_t>(first + row);
      argmax[index] = lily::argmax(logits);
      const double maximum = logits[static_cast<std::size_t>(argmax[index])];
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
      const double target = logits[static_cast<std::size_t>(targets[index])];
      const double log_probability = target - maximum - std::log(sum);
      log_probabilities[index] = all_finite(logits) ? static_cast<float>(log_probability) : std::nanf("");
    });
  }
}

}  // namespace lily::cpu
