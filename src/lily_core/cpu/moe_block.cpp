// cpu/moe_block.cpp -- routes rows to experts and computes each expert once for all its rows.
//
// A row's contributions are added to the residual stream in ascending order of expert, the shared expert last,
// whatever the other rows of the chunk.
#include "cpu/moe_block.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lily::cpu {
namespace {

std::int64_t task_count(std::int64_t rows, std::int64_t task_rows) { return (rows + task_rows - 1) / task_rows; }

// Weight rows of an expert's input projections in one task: many activation rows give enough work for large tasks, and
// each task gathers its activation rows only once.
constexpr std::int64_t kInputTaskRows = 4 * kTaskRows;
constexpr std::int64_t kManyRows = 64;

}  // namespace

// Softmax over all experts, the num_experts_per_tok most probable (ties: lower index), renormalised if configured.
void MoeBlock::route_row(const Arrays& arrays, std::int64_t row) {
  const std::int64_t experts = config_.num_experts;
  const std::int64_t chosen = config_.num_experts_per_tok;
  float* probability = arrays.router + row * experts;
  compute_.kernels().softmax(probability, experts, probability);
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
void MoeBlock::group_by_expert(const MoeWeights& moe, const Arrays& arrays) {
  const std::int64_t rows = arrays.rows;
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
    assignment_weight_[place] = 1.0F / (1.0F + std::exp(-arrays.shared_gate[row]));
  }
}

// silu(gate) * up for rows [row_begin, row_end) of the intermediate values of the experts' group at `index`.
void MoeBlock::gate_up(const Arrays& arrays, const Activations& input, std::size_t index, std::int64_t row_begin,
                       std::int64_t row_end, std::int64_t worker) {
  const ExpertGroup& group = groups_[index];
  const MlpWeights& mlp = *group.mlp;
  const bool shared = &group == &groups_.back();
  const std::int64_t width = mlp.gate_proj.rows;
  float* act = shared ? arrays.shared_act : arrays.expert_act + group.begin * width;
  AlignedBuffer<float>& up = compute_.scratch(worker).tile;
  const std::int64_t stride = row_end - row_begin;
  up.reserve(group.count * stride);
  const std::int32_t* rows = assignment_row_.data() + group.begin;
  const WeightBlock gate_block{mlp.gate_proj, row_begin, row_end, &mlp.up_proj, row_begin};
  WeightBlock up_block{mlp.up_proj, row_begin, row_end, &mlp.gate_proj, row_end};
  if (row_end == width) {
    up_block.next_weight = &groups_[shared ? 0 : index + 1].mlp->gate_proj;
    up_block.next_row = 0;
  }
  compute_.multiply_block(gate_block, input, rows, group.count, act, width, worker);
  compute_.multiply_block(up_block, input, rows, group.count, up.data() - row_begin, stride, worker);
  for (std::int64_t i = 0; i < group.count; ++i) {
    float* gate = act + i * width + row_begin;
    compute_.kernels().silu_multiply(gate, up.data() + i * stride, stride, gate);
  }
}

// Adds rows [row_begin, row_end) of every expert's output to the residual stream.
void MoeBlock::down(const Arrays& arrays, Chunk& chunk, std::int64_t row_begin, std::int64_t row_end,
                    std::int64_t worker) {
  AlignedBuffer<float>& tile = compute_.scratch(worker).tile;
  const std::int64_t stride = row_end - row_begin;
  for (const ExpertGroup& group : groups_) {
    const bool shared = &group == &groups_.back();
    tile.reserve(group.count * stride);
    const ExpertGroup& next = shared ? groups_.front() : *(&group + 1);
    const WeightBlock block{group.mlp->down_proj, row_begin, row_end, &next.mlp->down_proj,
                            shared ? row_end : row_begin};
    compute_.multiply_block(block, shared ? shared_output_ : chunk.output(), act_row_.data() + group.begin, group.count,
                            tile.data() - row_begin, stride, worker);
    for (std::int64_t i = 0; i < group.count; ++i) {
      const auto assignment = static_cast<std::size_t>(group.begin + i);
      float* out = chunk.hidden(arrays.first_needed_row + assignment_row_[assignment]) + row_begin;
      compute_.kernels().axpy(assignment_weight_[assignment], tile.data() + i * stride, stride, out);
    }
  }
}

MoeBlock::Arrays MoeBlock::allocate(Chunk& chunk, std::int64_t first_needed_row) {
  const std::int64_t rows = chunk.rows() - first_needed_row;
  const std::int64_t chosen = rows * config_.num_experts_per_tok;
  Arrays arrays{.rows = rows, .first_needed_row = first_needed_row};
  chunk.workspace().divide({{&arrays.router, rows * config_.num_experts},
                            {&arrays.shared_gate, rows},
                            {&arrays.expert_act, chosen * config_.moe_intermediate_size},
                            {&arrays.shared_act, rows * config_.shared_expert_intermediate_size}});
  chosen_expert_.resize(static_cast<std::size_t>(chosen));
  chosen_weight_.resize(static_cast<std::size_t>(chosen));
  return arrays;
}

// The shared expert, the longest group, goes first so that the threads end together.
void MoeBlock::gate_up_all(const Arrays& arrays, Chunk& chunk) {
  const auto group_count = static_cast<std::int64_t>(groups_.size());
  const std::int64_t input_rows = arrays.rows < kManyRows
                                      ? compute_.task_rows(group_count * config_.moe_intermediate_size, arrays.rows)
                                      : kInputTaskRows;
  const std::int64_t shared_tasks = task_count(config_.shared_expert_intermediate_size, input_rows);
  const std::int64_t expert_tasks = task_count(config_.moe_intermediate_size, input_rows);
  const std::int64_t routed_groups = group_count - 1;
  compute_.parallel_for(shared_tasks + routed_groups * expert_tasks, [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t routed_task = task - shared_tasks;
    const std::int64_t index = routed_task < 0 ? routed_groups : routed_task / expert_tasks;
    const std::int64_t begin = (routed_task < 0 ? task : routed_task % expert_tasks) * input_rows;
    const std::int64_t width =
        routed_task < 0 ? config_.shared_expert_intermediate_size : config_.moe_intermediate_size;
    gate_up(arrays, chunk.input(), static_cast<std::size_t>(index), begin, std::min(begin + input_rows, width), worker);
  });
}

void MoeBlock::down_all(const MoeWeights& moe, const Arrays& arrays, Chunk& chunk) {
  Activations& output = chunk.output();
  output.bind(arrays.expert_act, arrays.rows * config_.num_experts_per_tok, config_.moe_intermediate_size,
              {&moe.experts.front().down_proj});
  shared_output_.bind(arrays.shared_act, arrays.rows, config_.shared_expert_intermediate_size,
                      {&moe.shared_expert.down_proj});
  compute_.quantize(output);
  compute_.quantize(shared_output_);
  const std::int64_t output_rows = compute_.task_rows(config_.hidden_size, arrays.rows);
  compute_.parallel_for(task_count(config_.hidden_size, output_rows), [&](std::int64_t task, std::int64_t worker) {
    const std::int64_t begin = task * output_rows;
    down(arrays, chunk, begin, std::min(begin + output_rows, config_.hidden_size), worker);
  });
}

void MoeBlock::run(const LayerWeights& weights, Chunk& chunk, std::int64_t first_needed_row) {
  if (first_needed_row == chunk.rows()) return;
  const MoeWeights& moe = weights.moe;
  const Arrays arrays = allocate(chunk, first_needed_row);
  const MlpWeights& any = moe.experts.front();
  const MlpWeights& shared = moe.shared_expert;
  chunk.normalize(
      first_needed_row, chunk.rows(), weights.post_attention_layernorm,
      {&moe.router, &moe.shared_expert_gate, &any.gate_proj, &any.up_proj, &shared.gate_proj, &shared.up_proj});
  compute_.multiply({{&moe.router, arrays.router}, {&moe.shared_expert_gate, arrays.shared_gate}}, chunk.input());
  compute_.for_rows(0, arrays.rows, [&](std::int64_t row) { route_row(arrays, row); });
  group_by_expert(moe, arrays);
  gate_up_all(arrays, chunk);
  down_all(moe, arrays, chunk);
}

}  // namespace lily::cpu
