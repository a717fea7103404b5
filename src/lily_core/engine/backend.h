// engine/backend.h -- what the forward pass asks of a device: whole blocks of the model, for a chunk of rows or one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace lily {

// All state that a sequence carries between calls: KV cache, recurrent states, convolution windows.
// Made by the backend that uses it. Its position is the number of tokens it has seen.
class SessionState {
 public:
  virtual ~SessionState() = default;
  [[nodiscard]] std::int64_t position() const { return position_; }
  // After all blocks of a chunk: the chunk's rows are now part of the past.
  void advance(std::int64_t rows) { position_ += rows; }
  // Back to the empty sequence; keeps allocations.
  virtual void reset() = 0;
  // Bytes held now.
  [[nodiscard]] virtual std::size_t bytes() const = 0;

 protected:
  std::int64_t position_ = 0;
};

// One chunk at a time: begin_chunk, every layer's mixer and MoE block in order, then head or score.
// The residual stream of the chunk lives in the backend. A block whose `first_needed_row` is positive may leave
// the residual rows below it undefined, as nothing reads them any more (last layer of a prompt).
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::unique_ptr<SessionState> create_state() const = 0;
  // Rows that one chunk may hold.
  [[nodiscard]] virtual std::int64_t max_chunk_rows() const = 0;
  virtual void begin_chunk(std::span<const std::int32_t> ids) = 0;
  virtual void gdn_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) = 0;
  virtual void attention_block(std::int64_t layer, SessionState& state, std::int64_t first_needed_row) = 0;
  virtual void moe_block(std::int64_t layer, std::int64_t first_needed_row) = 0;
  // Logits of one row of the chunk: [vocab_size] float32.
  virtual void head(std::int64_t row, std::span<float> logits) = 0;
  // For rows 0.. of the chunk: the log-probability of targets[row] and the most probable token.
  virtual void score(std::span<const std::int32_t> targets, std::span<float> log_probabilities,
                     std::span<std::int32_t> argmax) = 0;
};

}  // namespace lily
