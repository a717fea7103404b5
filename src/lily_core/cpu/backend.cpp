// cpu/backend.cpp -- the loop over layers, the head and scoring.
#include "cpu/backend.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/default_floats.h"
#include "base/error.h"
#include "base/finite.h"
#include "base/log_softmax.h"
#include "cpu/cpu_backend.h"
#include "cpu/dispatch.h"

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
      max_chunk_rows_(max_chunk_rows),
      kv_type_(kv_type),
      compute_(config, kernels, threads),
      chunk_(config, compute_),
      gdn_block_(config, compute_),
      attention_block_(config, compute_, kv_type),
      moe_block_(config, compute_) {}

std::unique_ptr<SessionState> CpuBackend::create_state() const {
  return std::make_unique<CpuSessionState>(config_, kv_type_);
}

std::size_t CpuBackend::scratch_bytes() const { return chunk_.bytes() + moe_block_.bytes() + compute_.scratch_bytes(); }

// hidden = hidden + mixer(norm(hidden)); hidden = hidden + moe(norm(hidden)), layer by layer.
void CpuBackend::run_layers(CpuSessionState& state, std::span<const std::int32_t> ids, std::int64_t first_needed_row,
                            const BlockObserver& observe) {
  const auto show = [&](std::int64_t layer, BlockKind kind) {
    if (observe)
      observe(layer, kind, {chunk_.hidden(0), static_cast<std::size_t>(chunk_.rows() * config_.hidden_size)});
  };
  chunk_.begin(ids, weights_.embed_tokens);
  show(0, BlockKind::embedding);
  const std::int64_t last = config_.num_hidden_layers() - 1;
  for (std::int64_t layer = 0; layer <= last; ++layer) {
    const std::int64_t first = layer == last ? first_needed_row : 0;
    const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
    if (config_.layer_types[static_cast<std::size_t>(layer)] == LayerType::linear_attention) {
      gdn_block_.run(weights, state.gdn(layer), chunk_, first);
    } else {
      attention_block_.run(weights, state.kv_cache(layer), state.position(), chunk_, first);
    }
    show(layer, BlockKind::mixer);
    moe_block_.run(weights, chunk_, first);
    show(layer, BlockKind::moe);
  }
  state.advance(chunk_.rows());
}

bool CpuBackend::trace(SessionState& state, std::span<const std::int32_t> ids, const BlockObserver& observe) {
  run_layers(static_cast<CpuSessionState&>(state), ids, 0, observe);
  return true;
}

void CpuBackend::prefill(SessionState& state, std::span<const std::int32_t> ids, std::span<float> logits) {
  const auto rows = static_cast<std::int64_t>(ids.size());
  run_layers(static_cast<CpuSessionState&>(state), ids, logits.empty() ? rows : rows - 1);
  if (logits.empty()) return;
  chunk_.normalize(rows - 1, rows, weights_.norm, {&weights_.lm_head});
  compute_.multiply({{&weights_.lm_head, logits.data()}}, chunk_.input());
}

void CpuBackend::step(std::span<StepRow> rows) {
  for (const StepRow& row : rows) prefill(*row.state, std::span(&row.token, 1), row.logits);
}

void CpuBackend::score(SessionState& state, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                       std::span<float> log_probabilities, std::span<std::int32_t> argmax) {
  run_layers(static_cast<CpuSessionState&>(state), ids, 0);
  const std::int64_t vocab = config_.vocab_size;
  const auto total = static_cast<std::int64_t>(targets.size());
  float* score_logits = nullptr;  // [score rows, vocab_size]
  chunk_.workspace().divide({{&score_logits, std::min(kScoreRows, total) * vocab}});
  for (std::int64_t first = 0; first < total; first += kScoreRows) {
    const std::int64_t count = std::min(kScoreRows, total - first);
    chunk_.normalize(first, first + count, weights_.norm, {&weights_.lm_head});
    compute_.multiply({{&weights_.lm_head, score_logits}}, chunk_.input());
    compute_.for_rows(0, count, [&](std::int64_t row) {
      const std::span<const float> logits(score_logits + row * vocab, static_cast<std::size_t>(vocab));
      const auto index = static_cast<std::size_t>(first + row);
      argmax[index] = lily::argmax(logits);
      const LogSoftmax log_softmax(logits, logits[static_cast<std::size_t>(argmax[index])]);
      const float log_probability = log_softmax.of(logits[static_cast<std::size_t>(targets[index])]);
      log_probabilities[index] = all_finite(logits) ? log_probability : std::nanf("");
    });
  }
}

}  // namespace lily::cpu
