// gpu/shapes.cpp -- refuses configs that the kernels cannot run.
#include "gpu/shapes.h"

#include <algorithm>
#include <string>

#include "../../metal/lily_args.h"
#include "base/error.h"

namespace lily::gpu {
namespace {

void require(bool fits, const char* field, std::int64_t value, const char* wanted) {
  if (fits) return;
  throw Error(ErrorKind::config, std::string(field) + " is " + std::to_string(value) + ", and the GPU engine takes " +
                                     wanted + "; load the model with backend=\"cpu\"");
}

}  // namespace

void require_shapes(const ModelConfig& config) {
  const auto fits_lanes = [](std::int64_t size) { return size > 0 && size % args::kSimdWidth == 0 && size <= 256; };
  const bool attends = std::ranges::find(config.layer_types, LayerType::full_attention) != config.layer_types.end();
  const bool scans = std::ranges::find(config.layer_types, LayerType::linear_attention) != config.layer_types.end();
  constexpr const char* kLanes = "multiples of 32 up to 256";
  require(!attends || fits_lanes(config.head_dim), "head_dim", config.head_dim, kLanes);
  require(!scans || fits_lanes(config.linear_key_head_dim), "linear_key_head_dim", config.linear_key_head_dim, kLanes);
  require(!scans || config.linear_value_head_dim <= args::kStepMaxValueDim, "linear_value_head_dim",
          config.linear_value_head_dim, "at most 1024");
  require(config.num_experts <= 512, "num_experts", config.num_experts, "at most 512");
  require(config.num_experts_per_tok <= args::kSimdWidth, "num_experts_per_tok", config.num_experts_per_tok,
          "at most 32");
}

}  // namespace lily::gpu
