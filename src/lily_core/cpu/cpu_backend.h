// cpu/cpu_backend.h -- working memory of the CPU backend and its blocks, each in a file of its own.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "cpu/activations.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernels.h"
#include "cpu/session_state.h"
#include "cpu/thread_pool.h"
#include "cpu/workspace.h"
#include "engine/backend.h"
#include "engine/weights.h"

namespace lily::cpu {

// Weight rows of one task: enough work to pay for taking it, few enough to balance the threads.
inline constexpr std::int64_t kTaskRows = 4 * kRowTile;
// The most where there are many: with several activation rows each task prepares them once, with few reading the
// weights is the work.
inline constexpr std::int64_t kMaxTaskRows = 4 * kTaskRows;
inline constexpr std::int64_t kReadingRows = 4;
inline constexpr std::int64_t kMaxReadingRows = 2 * kTaskRows;

// Memory that one worker thread uses inside a task.
struct WorkerScratch {
  AlignedBuffer<std::byte> matmul;
  AlignedBuffer<std::byte> attention;
  AlignedBuffer<float> tile;  // [rows, weight rows of a task]
  std::vector<KvSpan> spans;
  std::vector<const float*> queries;  // [rows]
  std::vector<float*> outputs;        // [rows]
  std::vector<std::int64_t> visible;  // [rows]
};

// One weight matrix of a parallel product: out[m, n] = (weight x[m])[n], or out += if accumulate.
struct Product {
  const Matrix* weight;
  float* out;  // [rows, weight->rows]
  bool accumulate = false;
};

// Weight rows [begin, end) of one product of activations, and what the same thread probably reads after them.
struct WeightBlock {
  const Matrix& weight;
  std::int64_t begin;
  std::int64_t end;
  const Matrix* next_weight = nullptr;
  std::int64_t next_row = 0;
};

// The rows of a chunk that one expert (or the shared expert) processes, consecutive in the assignment arrays.
struct ExpertGroup {
  const MlpWeights* mlp;
  std::int64_t begin;  // first assignment
  std::int64_t count;  // assignments
};

// Query heads [head_begin, head_end), which share a key/value head, of the chunk's rows [row_begin, row_end).
struct AttentionTask {
  std::int64_t head_begin;
  std::int64_t head_end;
  std::int64_t row_begin;
  std::int64_t row_end;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelConfig& config, const ModelWeights& weights, const KernelTable& kernels, std::int64_t threads,
             std::int64_t max_chunk_rows, KvType kv_type);

  [[nodiscard]] std::unique_ptr<SessionState> create_state() const override;
  [[nodiscard]] std::size_t scratch_bytes() const override;
  [[nodiscard]] std::int64_t max_chunk_rows() const override { return max_chunk_rows_; }
  void begin_chunk(std::span<const std::int32_t> ids) override;
  void gdn_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) override;
  void attention_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) override;
  void moe_block(std::int64_t layer, std::int64_t first_needed_row) override;
  void head(std::int64_t row, std::span<float> logits) override;
  void score(std::span<const std::int32_t> targets, std::span<float> log_probabilities,
             std::span<std::int32_t> argmax) override;
  [[nodiscard]] std::span<const float> residual(std::int64_t row) const override {
    return {hidden_.data() + row * config_.hidden_size, static_cast<std::size_t>(config_.hidden_size)};
  }

 private:
  // backend.cpp: shared steps.
  [[nodiscard]] float* hidden_row(std::int64_t row) { return hidden_.data() + row * config_.hidden_size; }
  [[nodiscard]] WorkerScratch& scratch(std::int64_t worker) { return scratch_[static_cast<std::size_t>(worker)]; }
  template <class Body>
  void for_rows(std::int64_t begin, std::int64_t end, Body&& body);
  void normalize_rows(std::int64_t begin, const std::vector<float>& weight,
                      std::initializer_list<const Matrix*> matrices);
  void quantize_all(Activations& activations);
  [[nodiscard]] std::int64_t task_rows(std::int64_t weight_rows, std::int64_t row_count) const;
  void multiply(std::initializer_list<Product> products, const Activations& x);
  void multiply_block(const WeightBlock& block, const Activations& x, const std::int32_t* row_index,
                      std::int64_t row_count, float* out, std::int64_t out_stride, std::int64_t worker);

  // gdn_block.cpp
  void compute_gates(const GdnWeights& gdn);
  void gdn_key_head(const GdnWeights& gdn, GdnState& state, std::int64_t key_head, std::int64_t first_needed_row);

  // attention_block.cpp
  void prepare_rope(std::int64_t position);
  void prepare_query_key_value(const AttentionWeights& attention, KvCache& cache, std::int64_t position,
                               std::int64_t row, std::int64_t first_needed_row);
  void attend(KvCache& cache, std::int64_t position, const AttentionTask& task, std::int64_t first_needed_row,
              std::int64_t worker);

  // moe_block.cpp
  void route_row(std::int64_t row);
  void group_by_expert(const MoeWeights& moe);
  void expert_gate_up(std::size_t index, std::int64_t row_begin, std::int64_t row_end, std::int64_t worker);
  void expert_down(std::int64_t first_needed_row, std::int64_t row_begin, std::int64_t row_end, std::int64_t worker);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const KernelTable& kernels_;
  ThreadPool pool_;
  std::int64_t max_chunk_rows_;
  KvType kv_type_;
  std::vector<WorkerScratch> scratch_;  // [threads]

  std::int64_t rows_ = 0;            // of the current chunk
  AlignedBuffer<float> hidden_;      // [rows, hidden_size] residual stream
  AlignedBuffer<float> normalized_;  // [rows, hidden_size]
  Activations input_;                // normalized_, for the block's input projections
  Activations output_;               // the mixer's result, or the routed experts', for the output projections
  Workspace workspace_;              // the arrays below that are pointers: a block's own, until the next block

  // Gated DeltaNet.
  float* qkv_ = nullptr;    // [rows, linear_conv_dim]
  float* z_ = nullptr;      // [rows, linear_value_dim]
  float* decay_ = nullptr;  // [rows, linear_num_value_heads] projection a, then the decay
  float* beta_ = nullptr;   // [rows, linear_num_value_heads] projection b, then beta
  float* mixed_ = nullptr;  // [rows, linear_value_dim or num_attention_heads * head_dim]

  // Attention.
  float* query_ = nullptr;              // [rows, num_attention_heads, 2, head_dim]: query, gate
  float* key_ = nullptr;                // [rows, num_key_value_heads, head_dim]
  float* value_ = nullptr;              // [rows, num_key_value_heads, head_dim]
  std::vector<double> rope_frequency_;  // [rotary_dim / 2] radians per position
  float* rope_cosine_ = nullptr;        // [rows, rotary_dim / 2]
  float* rope_sine_ = nullptr;          // [rows, rotary_dim / 2]

  // Mixture of experts. An assignment is a (row, expert) pair, or a row of the shared expert.
  float* router_ = nullptr;                   // [rows, num_experts] logits, then probabilities
  float* shared_gate_ = nullptr;              // [rows] logit of the shared expert's gate
  std::vector<std::int32_t> chosen_expert_;   // [rows, num_experts_per_tok], ascending
  std::vector<float> chosen_weight_;          // [rows, num_experts_per_tok]
  std::vector<ExpertGroup> groups_;           // by expert, the shared expert last
  std::vector<std::int32_t> assignment_row_;  // [assignments] row of input_
  std::vector<float> assignment_weight_;      // [assignments]
  std::vector<std::int32_t> act_row_;         // [assignments] row of expert_act_, or of shared_act_
  std::vector<std::int64_t> expert_begin_;    // [num_experts + 1]
  float* expert_act_ = nullptr;               // [rows * num_experts_per_tok, moe_intermediate_size]
  float* shared_act_ = nullptr;               // [rows, shared_expert_intermediate_size]
  Activations shared_output_;

  float* score_logits_ = nullptr;  // [score rows, vocab_size]
};

// Fills one row of `out` [columns] with the values of one row of a matrix. embed.cpp
void dequantize_row(const Matrix& matrix, std::int64_t row, float* out);

template <class Body>
void CpuBackend::for_rows(std::int64_t begin, std::int64_t end, Body&& body) {
  pool_.parallel_for(end - begin, [&](std::int64_t index, std::int64_t worker) { body(begin + index, worker); });
}

}  // namespace lily::cpu
