// cpu/moe_block.h -- mixture of experts: routing, grouping of rows by expert, and the experts' products.
#pragma once

#include <vector>

#include "cpu/chunk.h"
#include "cpu/compute.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::cpu {

// An assignment is a (row, expert) pair, or a row of the shared expert.
class MoeBlock {
 public:
  MoeBlock(const ModelConfig& config, Compute& compute) : config_(config), compute_(compute) {}

  // hidden += moe(norm(hidden)), of the rows from first_needed_row on.
  void run(const LayerWeights& weights, Chunk& chunk, std::int64_t first_needed_row);
  // Working memory held now, the chunk's not counted.
  [[nodiscard]] std::size_t bytes() const { return shared_output_.bytes(); }

 private:
  // Of one chunk, in its workspace. Rows count from first_needed_row.
  struct Arrays {
    float* router = nullptr;       // [rows, num_experts] logits, then probabilities
    float* shared_gate = nullptr;  // [rows] logit of the shared expert's gate
    float* expert_act = nullptr;   // [rows * num_experts_per_tok, moe_intermediate_size]
    float* shared_act = nullptr;   // [rows, shared_expert_intermediate_size]
    std::int64_t rows = 0;
    std::int64_t first_needed_row = 0;
  };

  // The rows that one expert (or the shared expert) processes, consecutive in the assignment arrays.
  struct ExpertGroup {
    const MlpWeights* mlp;
    std::int64_t begin;  // first assignment
    std::int64_t count;  // assignments
  };

  [[nodiscard]] Arrays allocate(Chunk& chunk, std::int64_t first_needed_row);
  void route_row(const Arrays& arrays, std::int64_t row);
  void group_by_expert(const MoeWeights& moe, const Arrays& arrays);
  void gate_up_all(const Arrays& arrays, Chunk& chunk);
  void gate_up(const Arrays& arrays, const Activations& input, std::size_t index, std::int64_t row_begin,
               std::int64_t row_end, std::int64_t worker);
  void down_all(const MoeWeights& moe, const Arrays& arrays, Chunk& chunk);
  void down(const Arrays& arrays, Chunk& chunk, std::int64_t row_begin, std::int64_t row_end, std::int64_t worker);

  const ModelConfig& config_;
  Compute& compute_;
  std::vector<std::int32_t> chosen_expert_;   // [rows, num_experts_per_tok], ascending
  std::vector<float> chosen_weight_;          // [rows, num_experts_per_tok]
  std::vector<ExpertGroup> groups_;           // by expert, the shared expert last
  std::vector<std::int32_t> assignment_row_;  // [assignments] row of the chunk's input
  std::vector<float> assignment_weight_;      // [assignments]
  std::vector<std::int32_t> act_row_;         // [assignments] row of expert_act, or of shared_act
  std::vector<std::int64_t> expert_begin_;    // [num_experts + 1]
  Activations shared_output_;
};

}  // namespace lily::cpu
