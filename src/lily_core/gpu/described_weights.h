// gpu/described_weights.h -- weights known by shape and format alone, so that passes can be planned without a
// checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "gpu/weights.h"
#include "weights/config.h"
#include "weights/weights.h"

namespace lily::gpu {

struct DeclaredFormat {
  MatrixFormat format = MatrixFormat::plain;
  std::int32_t group_size = 0;
};
// By canonical name, as "layers.3.mlp.experts.down_proj"; a matrix that is not listed is plain bfloat16.
using DeclaredFormats = std::unordered_map<std::string, DeclaredFormat>;

// Addresses without memory behind them: weights can lie there, but nobody may read them.
class ReservedAddresses {
 public:
  explicit ReservedAddresses(std::uint64_t bytes);
  ~ReservedAddresses();
  ReservedAddresses(const ReservedAddresses&) = delete;
  ReservedAddresses& operator=(const ReservedAddresses&) = delete;
  [[nodiscard]] const std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

class DescribedWeights {
 public:
  DescribedWeights(const ModelConfig& config, const DeclaredFormats& formats);
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }
  [[nodiscard]] HostRegion region() const { return {addresses_.data(), addresses_.size(), "weights"}; }

 private:
  ReservedAddresses addresses_;
  ModelWeights weights_;
};

}  // namespace lily::gpu
