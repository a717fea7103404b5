// cpu/moe_block.cpp -- mixture of experts: routing, grouping of rows by expert, and the experts' products.
//
// A row's contributions are added to the residual stream in ascending order of expert, the shared expert last,
// whatever the other rows of the chunk are.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/cpu_backend.h"

namespace lily::cpu {
namespace {

std::int64_t task_count(std::int64_t rows, std::int64_t task_rows) { return (rows + task_rows - 1) / task_rows; }

// Weight rows of an expert's input projections that one task takes: with many activation rows there is enough work
// for large ones, and a task gathers its activation rows once.
constexpr std::int64_t kInputTaskRows = 4 * kTaskRows;
constexpr std::int64_t kManyRows = 64;

}  // namespace

// Softmax over all experts, the num_experts_per_tok most probable (ties: lower index), renormalised if configured.
void CpuBackend::route_row(std::int64_t row) {
  const std::int64_t experts = config_.num_experts;
  const std::int64_t chosen = config_.num_experts_per_tok;
  float* probability = router_ + row * experts;
  kernels_.softmax(probability, experts, probability);
  std::int32_t* expert = chosen_expert_.data() + row * chosen;
  float* weight = chosen_weight_.data() + row * chosen;
  std::int64_t count = 0;
  for (std::int64_t candidate = 0; candidate < experts; ++candidate) {
    // Insert into the list of the best so far, held in descending order of probability.
    std::int64_t place = count < chosen ? count++ : chosen;
    while (place > 0 && probability[expert[place - 1]] < probability[candidate]) {
      if (place < chosen) expert[place] = expert[place - 1];
      --place;
    }
    if (place < chosen) expert[place] = static_cast<std::int32_t>(candidate);
  }
  std::sort(expert, expert + chosen);
  float sum = 0.0F;
  for (std::int64_t i = 0; i < chosen; ++i) sum += weight[i] = probability[expert[i]];
  if (!config_.norm_topk_prob) return;
  for (std::int64_t i = 0; i < chosen; ++i) weight[i] /= sum;
}

// Counting sort of the assignments by expert; rows stay in order inside an expert. The shared expert takes every row.
void CpuBackend::group_by_expert(const MoeWeights& moe) {
  const std::int64_t rows = input_.row_count();
  const std::int64_t chosen = config_.num_experts_per_tok;
  const auto routed = static_cast<std::size_t>(rows * chosen);
  expert_begin_.assign(static_cast<std::size_t>(config_.num_experts) + 1, 0);
  for (std::size_t i = 0; i < routed; ++i) ++expert_begin_[static_cast<std::size_t>(chosen_expert_[i]) + 1];
  std::partial_sum(expert_begin_.begin(), expert_begin_.end(), expert_begin_.begin());
  groups_.clear();
  for (std::size_t expert = 0; expert < moe.experts.size(); ++expert) {
    const std::int64_t begin = expert_begin_[expert];
    const std::int64_t count = expert_begin_[expert + 1] - begin;
    if (count > 0) groups_.push_back({&moe.experts[expert], begin, count});
  }
  groups_.push_back({&moe.shared_expert, static_cast<std::int64_t>(routed), rows});

  assignment_row_.resize(routed + static_cast<std::size_t>(rows));
  assignment_weight_.resize(routed + static_cast<std::size_t>(rows));
  act_row_.resize(routed + static_cast<std::size_t>(rows));
  const auto shared_begin = act_row_.begin() + static_cast<std::ptrdiff_t>(routed);
  std::iota(act_row_.begin(), shared_begin, 0);
  std::iota(shared_begin, act_row_.end(), 0);
  for (std::size_t i = 0; i < routed; ++i) {
    const auto place = static_cast<std::size_t>(expert_begin_[static_cast<std::size_t>(chosen_expert_[i])]++);
    assignment_row_[place] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / chosen);
    assignment_weight_[place] = chosen_weight_[i];
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::size_t place = routed + static_cast<std::size_t>(row);
    assignment_row_[place] = static_cast<std::int32_t>(row);
    assignment_weight_[place] = 1.0F / (1.0F + std::exp(-shared_gate_[row]));
  }
}

// silu(gate) * up for rows [row_begin, row_end) of the intermediate values of the experts' group at `index`.
void CpuBackend::expert_gate_up(std::size_t index, std::int64_t row_begin, std::int64_t row_end, std::int64_t worker) {
  const ExpertGroup& group = groups_[index];
  const MlpWeights& mlp = *group.mlp;
  const bool shared = &group == &groups_.back();
  const std::int64_t width = mlp.gate_proj.rows;
  float* act = shared ? shared_act_ : expert_act_ + group.begin * width;
  AlignedBuffer<float>& up = scratch(worker).tile;
  const std::int64_t stride = row_end - row_begin;
  up.reserve(group.count * stride);
  const std::int32_t* rows = assignment_row_.data() + group.begin;
  const WeightBlock gate_block{mlp.gate_proj, row_begin, row_end, &mlp.up_proj, row_begin};
  WeightBlock up_block{mlp.up_proj, row_begin, row_end, &mlp.gate_proj, row_end};
  if (row_end == width) {
    up_block.next_weight = &groups_[shared ? 0 : index + 1].mlp->gate_proj;
    up_block.next_row = 0;
  }
  multiply_block(gate_block, input_, rows, group.count, act, width, worker);
  multiply_block(up_block, input_, rows, group.count, up.data() - row_begin, stride, worker);
  for (std::int64_t i = 0; i < group.count; ++i) {
    float* gate = act + i * width + row_begin;
    kernels_.silu_multiply(gate, up.data() + i * stride, stride, gate);
  }
}

// Adds rows [row_begin, row_end) of every expert's output to the residual stream.
void CpuBackend::expert_down(std::int64_t first_needed_row, std::int64_t row_begin, std::int64_t row_end,
                             std::int64_t worker) {
  AlignedBuffer<float>& tile = scratch(worker).tile;
  const std::int64_t stride = row_end - row_begin;
  for (const ExpertGroup& group : groups_) {
    const bool shared = &group == &groups_.back();
    tile.reserve(group.count * stride);
    const ExpertGroup& next = shared ? groups_.front() : *(&group + 1);
    const WeightBlock block{group.mlp->down_proj, row_begin, row_end, &next.mlp->down_proj,
                            shared ? row_end : row_begin};
    multiply_block(block, shared ? shared_output_ : output_, act_row_.data() + group.begin, group.count,
                   tile.data() - row_begin, stride, worker);
    for (std::int64_t i = 0; i < group.count; ++i) {
      const auto assignment = static_cast<std::size_t>(group.begin + i);
      float* out = hidden_row(first_needed_row + assignment_row_[assignment]) + row_begin;
      kernels_.axpy(assignment_weight_[assignment], tile.data() + i * stride, stride, out);
    }
  }
}

void CpuBackend::moe_block(std::int64_t layer, std::int64_t first_needed_row) {
  const std::int64_t rows = rows_ - first_needed_row;
  if (rows == 0) return;
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const MoeWeights& moe = weights.moe;
  const std::int64_t chosen = config_.num_experts_per_tok;
  workspace_.divide({{&router_, rows * config_.num_experts},
                     {&shared_gate_, rows},
                     {&expert_act_, rows * chosen * config_.moe_intermediate_size},
                     {&shared_act_, rows * config_.shared_expert_intermediate_size}});
  chosen_expert_.resize(static_cast<std::size_t>(rows * chosen));
  chosen_weight_.resize(static_cast<std::size_t>(rows * chosen));

  const MlpWeights& any = moe.experts.front();
  const MlpWeights& shared = moe.shared_expert;
  normalize_rows(
      first_needed_row, weights.post_attention_layernorm,
      {&moe.router, &moe.shared_expert_gate, &any.gate_proj, &any.up_proj, &shared.gate_proj, &shared.up_proj});
  multiply({{&moe.router, router_}, {&moe.shared_expert_gate, shared_gate_}}, input_);
  for_rows(0, rows, [&](std::int64_t row, std::int64_t) { route_row(row); });
  group_by_expert(moe);

  // The shared expert, the longest group, goes first so that the threads end together.
  const std::int64_t group_count = static_cast<std::int64_t>(groups_.size());
  const std::int64_t input_rows =
      rows < kManyRows ? task_rows(group_count * config_.moe_intermediate_size, rows) : kInputTaskRows;
  const std::int64_t shared_tasks = task_count(config_.shared_expert_intermediate_size, input_rows);
  const std::int64_t expert_tasks = task_count(config_.moe_intermediate_size, input_rows);
  const std::int64_t routed_groups = group_count - 1;
  pool_.parallel_for(shared_tasks + routed_groups * expert_tasks, [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t routed_task = task - shared_tasks;
    const std::int64_t index = routed_task < 0 ? routed_groups : routed_task / expert_tasks;
    const std::int64_t begin = (routed_task < 0 ? task : routed_task % expert_tasks) * input_rows;
    const std::int64_t width =
        routed_task < 0 ? config_.shared_expert_intermediate_size : config_.moe_intermediate_size;
    expert_gate_up(static_cast<std::size_t>(index), begin, std::min(begin + input_rows, width), worker);
  });
  output_.bind(expert_act_, rows * chosen, config_.moe_intermediate_size, {&any.down_proj});
  shared_output_.bind(shared_act_, rows, config_.shared_expert_intermediate_size, {&shared.down_proj});
  quantize_all(output_);
  quantize_all(shared_output_);
  const std::int64_t output_rows = task_rows(config_.hidden_size, rows);
  pool_.parallel_for(task_count(config_.hidden_size, output_rows), [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t begin = task * output_rows;
    expert_down(first_needed_row, begin, std::min(begin + output_rows, config_.hidden_size), worker);
  });
}

}  // namespace lily::cpu
