// cpu/compute.cpp -- products of activations and weights, split into tasks for the threads.
#include "cpu/compute.h"

#include <algorithm>

namespace lily::cpu {
namespace {

// Maximum weight rows of a task: with several activation rows, each task prepares those rows once; with few, reading
// the weights dominates.
constexpr std::int64_t kMaxTaskRows = 4 * kTaskRows;
constexpr std::int64_t kReadingRows = 4;
constexpr std::int64_t kMaxReadingRows = 2 * kTaskRows;

std::int64_t widest_columns(const ModelConfig& config) {
  return std::max({config.hidden_size, config.linear_value_dim(), config.num_attention_heads * config.head_dim,
                   config.moe_intermediate_size, config.shared_expert_intermediate_size});
}

}  // namespace

Compute::Compute(const ModelConfig& config, const KernelTable& kernels, std::int64_t threads)
    : kernels_(kernels), pool_(threads), scratch_(static_cast<std::size_t>(threads)) {
  const auto bytes = static_cast<std::int64_t>(kernels.matmul_scratch_bytes(widest_columns(config)));
  for (WorkerScratch& worker : scratch_) worker.matmul.reserve(bytes);
}

std::size_t Compute::scratch_bytes() const {
  std::size_t total = 0;
  for (const WorkerScratch& worker : scratch_) {
    total += worker.matmul.bytes() + worker.attention.bytes() + worker.tile.bytes();
  }
  return total;
}

void Compute::quantize(Activations& activations) {
  for_rows(0, activations.row_count(), [&](std::int64_t row) { activations.quantize(kernels_, row); });
}

void Compute::multiply_block(const WeightBlock& block, const Activations& x, const std::int32_t* row_index,
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

std::int64_t Compute::task_rows(std::int64_t weight_rows, std::int64_t row_count) const {
  const std::int64_t tasks = weight_rows / (8 * pool_.size() * kTaskRows);
  return std::clamp(tasks * kTaskRows, kTaskRows, row_count > kReadingRows ? kMaxTaskRows : kMaxReadingRows);
}

void Compute::multiply(std::initializer_list<Product> products, const Activations& x) {
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

}  // namespace lily::cpu
