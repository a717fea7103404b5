// engine/snapshot.h -- a sequence frozen at one position, and the count of the memory that a set of them holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/backend.h"
#include "engine/model.h"

namespace lily {

// Never changes; sessions of the same model can continue from it. Shares memory with the session it was taken from and
// with every session and snapshot derived from it.
class Snapshot {
 public:
  // `pending` is a last token whose state is not computed; `logits` may be null.
  Snapshot(std::shared_ptr<Model> model, std::unique_ptr<const SessionState> state, std::vector<std::int32_t> tokens,
           std::optional<std::int32_t> pending, std::shared_ptr<std::vector<float>> logits);

  [[nodiscard]] bool belongs_to(const Model& model) const { return model_.get() == &model; }
  [[nodiscard]] const SessionState& state() const { return *state_; }
  [[nodiscard]] const std::vector<std::int32_t>& tokens() const { return tokens_; }  // computed ones
  [[nodiscard]] std::optional<std::int32_t> pending() const { return pending_; }
  [[nodiscard]] const std::shared_ptr<std::vector<float>>& logits() const { return logits_; }
  // Tokens, the pending one included.
  [[nodiscard]] std::int64_t position() const { return state_->position() + (pending_ ? 1 : 0); }
  // Every piece of memory held; see SessionState::visit_memory.
  void visit_memory(const SessionState::MemoryVisitor& visit) const;
  // Bytes that would be freed with this snapshot, and all bytes it holds.
  [[nodiscard]] std::size_t own_bytes() const;
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<const SessionState> state_;
  std::vector<std::int32_t> tokens_;
  std::optional<std::int32_t> pending_;
  std::shared_ptr<std::vector<float>> logits_;  // not written: a session writes only a buffer that it alone holds
};

// Rebuilds a snapshot from the tensors of a file, given one after the other.
class SnapshotBuilder {
 public:
  // A state at `position` of which every tensor must be given.
  SnapshotBuilder(std::shared_ptr<Model> model, std::int64_t position);
  [[nodiscard]] const std::vector<StateTensor>& tensors() const { return tensors_; }
  void import_tensor(std::size_t index, std::span<const std::byte> values);
  [[nodiscard]] std::shared_ptr<Snapshot> build(std::vector<std::int32_t> tokens, std::optional<std::int32_t> pending,
                                                std::vector<float> logits);

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<SessionState> state_;
  std::vector<StateTensor> tensors_;
  std::vector<bool> given_;
};

// Memory held by a set of snapshots, each shared piece counted once. Not thread-safe.
class MemoryLedger {
 public:
  void add(const Snapshot& snapshot);
  // `snapshot` must have been added before, and be removed before it is destroyed.
  void remove(const Snapshot& snapshot);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Piece {
    std::size_t bytes = 0;
    std::int64_t holders = 0;
  };
  std::unordered_map<const void*, Piece> pieces_;
  std::size_t bytes_ = 0;
};

// Bytes of the values of a tensor.
[[nodiscard]] std::size_t byte_size(const StateTensor& tensor);

}  // namespace lily
