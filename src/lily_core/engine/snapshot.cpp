// engine/snapshot.cpp -- what a snapshot holds, and its rebuilding from the tensors of a file.
#include "engine/snapshot.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/non_finite.h"

namespace lily {

std::size_t byte_size(const StateTensor& tensor) {
  std::size_t size = tensor.type == StateType::float32 ? 4 : 2;
  for (const std::int64_t extent : tensor.shape) size *= static_cast<std::size_t>(extent);
  return size;
}

Snapshot::Snapshot(std::shared_ptr<Model> model, std::unique_ptr<const SessionState> state,
                   std::vector<std::int32_t> tokens, std::optional<std::int32_t> pending,
                   std::shared_ptr<std::vector<float>> logits)
    : model_(std::move(model)),
      state_(std::move(state)),
      tokens_(std::move(tokens)),
      pending_(pending),
      logits_(std::move(logits)) {}

void Snapshot::visit_memory(const SessionState::MemoryVisitor& visit) const {
  state_->visit_memory(visit);
  visit(tokens_.data(), tokens_.capacity() * sizeof(std::int32_t), false);
  if (logits_ != nullptr) visit(logits_.get(), logits_->size() * sizeof(float), logits_.use_count() > 1);
}

std::size_t Snapshot::own_bytes() const {
  std::size_t total = 0;
  visit_memory([&total](const void* /*identity*/, std::size_t size, bool shared) { total += shared ? 0 : size; });
  return total;
}

std::size_t Snapshot::bytes() const {
  std::size_t total = 0;
  visit_memory([&total](const void* /*identity*/, std::size_t size, bool /*shared*/) { total += size; });
  return total;
}

SnapshotBuilder::SnapshotBuilder(std::shared_ptr<Model> model, std::int64_t position) : model_(std::move(model)) {
  const std::int64_t max_context = model_->options().max_context;
  if (position < 0 || position > max_context) {
    throw Error(ErrorKind::context_overflow, "a state of " + std::to_string(position) +
                                                 " tokens does not fit in the maximum context of " +
                                                 std::to_string(max_context) + " (max_context of Model.load)");
  }
  state_ = model_->backend().create_state();
  tensors_ = state_->tensors(position);
  given_.assign(tensors_.size(), false);
  state_->begin_import(position);
}

void SnapshotBuilder::import_tensor(std::size_t index, std::span<const std::byte> values) {
  if (state_ == nullptr || index >= tensors_.size() || values.size() != byte_size(tensors_[index])) {
    throw Error(ErrorKind::invalid_argument, "a tensor of a saved state has the wrong size");
  }
  state_->import_tensor(index, values);
  given_[index] = true;
}

std::shared_ptr<Snapshot> SnapshotBuilder::build(std::vector<std::int32_t> tokens, std::optional<std::int32_t> pending,
                                                 std::vector<float> logits) {
  const ModelConfig& config = model_->config();
  const auto known = [&config](std::int32_t id) { return id >= 0 && id < config.vocab_size; };
  const bool complete = std::find(given_.begin(), given_.end(), false) == given_.end();
  const bool logits_fit = logits.empty() || logits.size() == static_cast<std::size_t>(config.vocab_size);
  if (state_ == nullptr || !complete || tokens.size() != static_cast<std::size_t>(state_->position()) || !logits_fit ||
      !std::all_of(tokens.begin(), tokens.end(), known) || (pending && !known(*pending))) {
    throw Error(ErrorKind::invalid_argument, "the parts of a saved state are inconsistent");
  }
  if (!all_finite(logits)) throw Error(ErrorKind::non_finite, "the logits of a saved state are not finite");
  std::shared_ptr<std::vector<float>> kept;
  if (!logits.empty()) kept = std::make_shared<std::vector<float>>(std::move(logits));
  return std::make_shared<Snapshot>(model_, std::move(state_), std::move(tokens), pending, std::move(kept));
}

void MemoryLedger::add(const Snapshot& snapshot) {
  snapshot.visit_memory([this](const void* identity, std::size_t size, bool /*shared*/) {
    if (size == 0) return;
    Piece& piece = pieces_[identity];
    if (piece.holders++ > 0) return;
    piece.bytes = size;
    bytes_ += size;
  });
}

void MemoryLedger::remove(const Snapshot& snapshot) {
  snapshot.visit_memory([this](const void* identity, std::size_t /*size*/, bool /*shared*/) {
    const auto found = pieces_.find(identity);
    if (found == pieces_.end() || --found->second.holders > 0) return;
    bytes_ -= found->second.bytes;
    pieces_.erase(found);
  });
}

}  // namespace lily
