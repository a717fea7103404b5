// cpu/chunk.h -- the rows being computed: their residual stream, and memory that the blocks use one after another.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include "cpu/activations.h"
#include "cpu/aligned_buffer.h"
#include "cpu/compute.h"
#include "cpu/workspace.h"
#include "weights/config.h"

namespace lily::cpu {

class Chunk {
 public:
  Chunk(const ModelConfig& config, Compute& compute) : config_(config), compute_(compute) {}

  // The rows' embeddings become the residual stream.
  void begin(std::span<const std::int32_t> ids, const Matrix& embed_tokens);
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  // [hidden_size] of the residual stream.
  [[nodiscard]] float* hidden(std::int64_t row) { return hidden_.data() + row * config_.hidden_size; }
  // Normalises the residual rows [begin, end) into input(), in the forms that `matrices` multiply.
  void normalize(std::int64_t begin, std::int64_t end, const std::vector<float>& weight,
                 std::initializer_list<const Matrix*> matrices);

  [[nodiscard]] Activations& input() { return input_; }    // normalised rows, for a block's input projections
  [[nodiscard]] Activations& output() { return output_; }  // what the output projections multiply
  // A block's arrays, until the next block.
  [[nodiscard]] Workspace& workspace() { return workspace_; }
  [[nodiscard]] std::size_t bytes() const;

 private:
  const ModelConfig& config_;
  Compute& compute_;
  std::int64_t rows_ = 0;
  AlignedBuffer<float> hidden_;      // [rows, hidden_size]
  AlignedBuffer<float> normalized_;  // [rows, hidden_size]
  Activations input_;
  Activations output_;
  Workspace workspace_;
};

}  // namespace lily::cpu
