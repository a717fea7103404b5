// gpu/gpu_backend.cpp -- prompt chunks and scoring: encode, plan, submit, wait.
#include "gpu/gpu_backend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/finite.h"
#include "base/log_softmax.h"
#include "gpu/memory_need.h"
#include "gpu/needed_pipelines.h"
#include "gpu/prefill_pass.h"
#include "gpu/shapes.h"

namespace lily::gpu {
namespace {

constexpr std::int64_t kDefaultChunk = 2048;
constexpr std::int64_t kFirstChunk = 512;  // until a chunk has been timed, where time matters
constexpr std::int64_t kSmallestChunk = 64;
constexpr std::int64_t kMostChunkRows = 65535;  // threadgroups in y: sim and CUDA take no more
constexpr double kPassSeconds = 0.5;            // systems end work of several seconds, and stutter before that
constexpr std::size_t kScoreRows = 32;

void grow(device::Device& device, std::shared_ptr<device::Buffer>& buffer, std::uint64_t bytes, const char* label,
          device::BufferStorage storage = device::BufferStorage::private_) {
  if (buffer != nullptr && buffer->size() >= bytes) return;
  buffer.reset();
  buffer = device.allocate(bytes, storage, label);
}

// Seconds that a pass of a prompt should take at most; nothing where time does not matter.
std::optional<double> pass_seconds(const device::Device& device, const Options& options) {
  if (options.pass_seconds > 0.0) return options.pass_seconds;
  return device.limits_pass_time() ? std::optional(kPassSeconds) : std::nullopt;
}

}  // namespace

std::unique_ptr<Backend> make_backend(std::shared_ptr<device::Device> device, const ModelConfig& config,
                                      const ModelWeights& weights, EngineOptions& options) {
  require_shapes(config);
  options.gpu.validate();
  if (options.prefill_chunk == 0) options.prefill_chunk = kDefaultChunk;
  options.prefill_chunk = std::min({options.prefill_chunk, options.max_context, kMostChunkRows});
  options.threads = 1;
  options.cpu_isa = "none";
  options.kv_cache_type = "bfloat16";
  fit_memory(*device, config, weights, options);
  options.prefill_chunk = std::min(options.prefill_chunk, options.max_context);
  auto backend = std::make_unique<GpuBackend>(std::move(device), config, weights, options);
  backend->compile_ahead(options);
  return backend;
}

GpuBackend::GpuBackend(std::shared_ptr<device::Device> device, const ModelConfig& config, const ModelWeights& weights,
                       const EngineOptions& options)
    : config_(config),
      max_context_(options.max_context),
      runner_(std::move(device), options.gpu),
      weights_(runner_.device(), config, weights, host_regions(weights), options.copy_progress),
      steps_(runner_, config, weights_, options.max_context),
      most_chunk_rows_(options.prefill_chunk),
      pass_seconds_(pass_seconds(runner_.device(), options.gpu)),
      chunk_rows_(pass_seconds_ ? std::min(kFirstChunk, options.prefill_chunk) : options.prefill_chunk) {}

void GpuBackend::compile_ahead(const EngineOptions& options) {
  device::Device& device = runner_.device();
  if (!device.compiles_ahead()) return;
  device.compile(needed_pipelines(config_, weights_, options, device.has_tensor_gemm()), options.compile_progress);
}

std::unique_ptr<SessionState> GpuBackend::create_state() const {
  return std::make_unique<GpuSessionState>(runner_.shared_device(), config_, max_context_);
}

std::size_t GpuBackend::scratch_bytes() const {
  std::size_t total = 0;
  for (const auto& buffer : {runner_.scratch(), ids_, score_rows_, score_logits_}) {
    if (buffer != nullptr) total += buffer->size();
  }
  return total;
}

void GpuBackend::prefill(SessionState& state, std::span<const std::int32_t> ids, std::span<float> logits) {
  auto& gpu_state = static_cast<GpuSessionState&>(state);
  run_chunk(gpu_state, ids, logits.empty() ? ChunkResult::state : ChunkResult::logits);
  if (!logits.empty()) gpu_state.read_logits(logits);
}

const HostRouting* GpuBackend::host_routing(std::uint32_t rows) {
  if (runner_.options().route_on_device) return nullptr;
  if (host_routing_rows_ < rows) {
    host_routing_ = std::make_unique<HostRouting>(runner_.device(), rows, config_);
    host_routing_rows_ = rows;
  }
  return host_routing_.get();
}

void GpuBackend::encode_result(Encoder& encoder, const StateViews& views, const View& hidden, std::uint32_t rows,
                               ChunkResult result) {
  const auto size = static_cast<std::uint32_t>(config_.hidden_size);
  if (result == ChunkResult::logits) {
    const std::uint64_t row_bytes = 4ULL * size;
    encode_head(encoder, weights_, hidden.part(hidden.size - row_bytes, row_bytes), views.logits);
  } else if (result == ChunkResult::normalized_rows) {
    grow(runner_.device(), score_rows_, 2ULL * size * rows, "rows to score");
    encoder.rms_norm(hidden, weights_.norm, rows, size, whole(*score_rows_).part(0, 2ULL * size * rows));
  }
}

void GpuBackend::run_chunk(GpuSessionState& state, std::span<const std::int32_t> ids, ChunkResult result) {
  const auto rows = static_cast<std::uint32_t>(ids.size());
  // The last layer finishes the rows that somebody reads.
  const std::array<std::uint32_t, 3> first_needed = {rows, rows - 1, 0};
  const std::uint32_t first_needed_row = first_needed[static_cast<std::size_t>(result)];
  const std::int64_t begin = state.position();
  const std::int64_t end = begin + rows;
  state.steps().give_up(state);
  const std::uint32_t index = state.current();
  runner_.move_caches(state, state.prepare(begin, end, index));
  state.write_slots(index, 0, begin, begin + first_needed_row);
  grow(runner_.device(), ids_, ids.size_bytes(), "prompt ids", device::BufferStorage::shared);
  std::memcpy(ids_->contents(), ids.data(), ids.size_bytes());

  Pass pass;
  Encoder encoder(runner_.device(), pass, runner_.options(), static_cast<float>(config_.rms_norm_eps));
  const StateViews views = state.views(index, begin);
  const View hidden = encode_prefill(encoder, config_, weights_, views,
                                     {.ids = whole(*ids_).part(0, ids.size_bytes()),
                                      .rows = rows,
                                      .first_needed_row = first_needed_row,
                                      .host = host_routing(rows)});
  encode_result(encoder, views, hidden, rows, result);
  const PlannedPass planned = runner_.plan(pass);
  runner_.counters().prefill = planned.report;
  const double seconds = runner_.run(planned);
  runner_.counters().prefill_seconds += seconds;
  adapt_chunk(rows, seconds);
  state.commit(index, end);
}

// A prompt's next chunk takes the rows that fit the time of a pass, at most twice as many as this one.
void GpuBackend::adapt_chunk(std::int64_t rows, double seconds) {
  if (!pass_seconds_ || rows < kSmallestChunk || seconds <= 0.0) return;
  const double fitting = static_cast<double>(rows) * *pass_seconds_ / seconds;
  const auto most = static_cast<double>(measured_ ? 2 * rows : most_chunk_rows_);
  const auto wanted = static_cast<std::int64_t>(std::min({fitting, most, static_cast<double>(most_chunk_rows_)}));
  const std::int64_t smallest = std::min(kSmallestChunk, most_chunk_rows_);
  chunk_rows_.store(std::max(wanted / kSmallestChunk * kSmallestChunk, smallest), std::memory_order_relaxed);
  measured_ = true;
}

void GpuBackend::begin_step(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) steps_.begin(row);
}

void GpuBackend::step(std::span<StepRow> rows) {
  for (StepRow& row : rows) steps_.step(row);
}

void GpuBackend::read_logits(const SessionState& state, std::span<float> logits) {
  static_cast<const GpuSessionState&>(state).read_logits(logits);
}

void GpuBackend::score(SessionState& state, std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                       std::span<float> log_probabilities, std::span<std::int32_t> argmax) {
  run_chunk(static_cast<GpuSessionState&>(state), ids, ChunkResult::normalized_rows);
  grow(runner_.device(), score_logits_, 4ULL * kScoreRows * static_cast<std::uint64_t>(config_.vocab_size),
       "score logits");
  for (std::size_t first = 0; first < targets.size(); first += kScoreRows) {
    const std::size_t count = std::min(kScoreRows, targets.size() - first);
    score_block(first, targets.subspan(first, count), log_probabilities.subspan(first, count),
                argmax.subspan(first, count));
  }
}

void GpuBackend::score_block(std::size_t first, std::span<const std::int32_t> targets,
                             std::span<float> log_probabilities, std::span<std::int32_t> argmax) {
  const auto vocab = static_cast<std::size_t>(config_.vocab_size);
  const std::uint64_t row_bytes = 2 * static_cast<std::uint64_t>(config_.hidden_size);
  Pass pass;
  Encoder encoder(runner_.device(), pass, runner_.options(), static_cast<float>(config_.rms_norm_eps));
  encoder.gemm(weights_.lm_head, whole(*score_rows_).part(first * row_bytes, targets.size() * row_bytes),
               static_cast<std::uint32_t>(targets.size()), whole(*score_logits_).part(0, 4ULL * vocab * targets.size()),
               args::kStoreFloat);
  runner_.run(runner_.plan(pass));
  std::vector<float> all(vocab * targets.size());
  score_logits_->read(0, std::as_writable_bytes(std::span(all)));
  for (std::size_t row = 0; row < targets.size(); ++row) {
    const std::span<const float> logits(all.data() + row * vocab, vocab);
    argmax[row] = lily::argmax(logits);
    const LogSoftmax log_softmax(logits, logits[static_cast<std::size_t>(argmax[row])]);
    const float log_probability = log_softmax.of(logits[static_cast<std::size_t>(targets[row])]);
    log_probabilities[row] = all_finite(logits) ? log_probability : std::nanf("");
  }
}

}  // namespace lily::gpu
