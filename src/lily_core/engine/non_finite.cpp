// engine/non_finite.cpp -- the second pass over a sequence whose logits are not finite.
#include "engine/non_finite.h"

#include <algorithm>
#include <vector>

#include "engine/snapshot.h"

namespace lily {
namespace {

// The earliest row that is not finite, and the first block after which it was not.
struct Place {
  std::int64_t row = 0;
  std::string block;
};

class RowWatch {
 public:
  RowWatch(std::int64_t rows, std::int64_t columns) : columns_(static_cast<std::size_t>(columns)), healthy_(rows) {}

  // A row's values depend only on earlier rows, so rows after a non-finite one need no check.
  void look(std::span<const float> residual, const std::string& block) {
    for (std::int64_t row = 0; row < healthy_; ++row) {
      if (all_finite(residual.subspan(static_cast<std::size_t>(row) * columns_, columns_))) continue;
      found_ = Place{row, block};
      healthy_ = row;
    }
  }
  [[nodiscard]] const std::optional<Place>& found() const { return found_; }

 private:
  std::size_t columns_;
  std::int64_t healthy_;  // leading rows that were finite after every block so far
  std::optional<Place> found_;
};

std::string name_of(const ModelConfig& config, std::int64_t layer, BlockKind kind) {
  const std::string prefix = "layers." + std::to_string(layer);
  if (kind == BlockKind::moe) return prefix + ".mlp";
  const bool linear = config.layer_types[static_cast<std::size_t>(layer)] == LayerType::linear_attention;
  return prefix + (linear ? ".linear_attn" : ".self_attn");
}

}  // namespace

std::optional<std::string> find_non_finite(const ModelConfig& config, Backend& backend, std::mutex& mutex,
                                           std::span<const std::int32_t> ids, const std::atomic<bool>& stop) {
  const auto state = backend.create_state();
  const auto total = static_cast<std::int64_t>(ids.size());
  for (std::int64_t begin = 0; begin < total && !stop.load(std::memory_order_relaxed);) {
    const std::int64_t rows = std::min(total - begin, backend.max_chunk_rows());
    const auto chunk = ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(rows));
    const std::scoped_lock lock(mutex);
    RowWatch watch(rows, config.hidden_size);
    const auto observe = [&](std::int64_t layer, BlockKind kind, std::span<const float> residual) {
      watch.look(residual, kind == BlockKind::embedding ? "embed_tokens" : name_of(config, layer, kind));
    };
    if (!backend.trace(*state, chunk, observe)) return std::nullopt;
    if (watch.found()) return "position " + std::to_string(begin + watch.found()->row) + ", " + watch.found()->block;
    begin += rows;
  }
  return std::nullopt;
}

std::optional<std::string> find_non_finite(const SessionState& state) {
  const std::vector<StateTensor> tensors = state.tensors(state.position());
  std::vector<std::byte> values;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    values.resize(byte_size(tensors[i]));
    state.export_tensor(i, values);
    const std::optional<std::int64_t> index = first_non_finite(values, tensors[i].type);
    if (!index) continue;
    if (tensors[i].type == StateType::float32) return tensors[i].name;  // has no positions
    const std::int64_t row = tensors[i].shape[1] * tensors[i].shape[2];
    return "position " + std::to_string(*index / row) + ", " + tensors[i].name;
  }
  return std::nullopt;
}

}  // namespace lily
