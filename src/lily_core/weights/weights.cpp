// weights/weights.cpp -- turns resolved checkpoint sources into typed views of the mapped files.
#include "weights/weights.h"

#include <cmath>
#include <string>
#include <unordered_map>

#include "base/default_floats.h"
#include "base/error.h"

namespace lily {
namespace {

class Binder {
 public:
  Binder(const ModelConfig& config, const CheckpointSource& source, const std::vector<MappedFile>& files)
      : config_(config), files_(files) {
    for (const MatrixSource& matrix : source.matrices) matrices_.emplace(matrix.name, &matrix);
    for (const VectorSource& vector : source.vectors) vectors_.emplace(vector.name, &vector);
  }

  std::vector<Matrix> matrices(const std::string& name, std::int64_t count, std::int64_t rows,
                               std::int64_t columns) const {
    const auto found = matrices_.find(name);
    if (found == matrices_.end()) fail(name, "is missing");
    const MatrixSource& source = *found->second;
    check_shape(source, rows, columns);
    std::vector<Matrix> result;
    result.reserve(static_cast<std::size_t>(count));
    for (const MatrixPart& part : source.parts) {
      for (std::int64_t i = 0; i < part.count; ++i) result.push_back(view(source, part, static_cast<std::uint64_t>(i)));
    }
    if (static_cast<std::int64_t>(result.size()) != count) {
      fail(name, "holds " + std::to_string(result.size()) + " matrices, expected " + std::to_string(count));
    }
    return result;
  }

  Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) const {
    return matrices(name, 1, rows, columns).front();
  }

  std::vector<float> vector(const std::string& name, std::int64_t size) const {
    const auto found = vectors_.find(name);
    if (found == vectors_.end()) fail(name, "is missing");
    const VectorSource& source = *found->second;
    if (source.size != size) {
      fail(name, "has " + std::to_string(source.size) + " elements, expected " + std::to_string(size));
    }
    const std::byte* bytes =
        file(name, source.file)
            .bytes(source.offset, static_cast<std::uint64_t>(size * element_bytes(source.element_type)));
    std::vector<float> values(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i) {
      values[static_cast<std::size_t>(i)] = load_element(bytes, source.element_type, i) + source.add;
    }
    return values;
  }

  MlpWeights mlp(const std::string& prefix, std::int64_t intermediate_size) const {
    return {matrix(prefix + "gate_proj", intermediate_size, config_.hidden_size),
            matrix(prefix + "up_proj", intermediate_size, config_.hidden_size),
            matrix(prefix + "down_proj", config_.hidden_size, intermediate_size)};
  }

 private:
  [[noreturn]] static void fail(const std::string& name, const std::string& what) {
    throw Error(ErrorKind::checkpoint, "weight " + name + " " + what);
  }

  static void check_shape(const MatrixSource& source, std::int64_t rows, std::int64_t columns) {
    if (source.rows != rows || source.columns != columns) {
      fail(source.name, "has shape [" + std::to_string(source.rows) + ", " + std::to_string(source.columns) +
                            "], expected [" + std::to_string(rows) + ", " + std::to_string(columns) + "]");
    }
    if (source.format == MatrixFormat::plain) return;
    const std::int32_t group = source.group_size;
    if (group != 32 && group != 64 && group != 128) fail(source.name, "has group size " + std::to_string(group));
    if (columns % group != 0) fail(source.name, "has columns that are not a multiple of its group size");
  }

  const MappedFile& file(const std::string& name, std::int32_t index) const {
    if (index < 0 || static_cast<std::size_t>(index) >= files_.size()) fail(name, "names a file that does not exist");
    return files_[static_cast<std::size_t>(index)];
  }

  const std::byte* slice(const MatrixSource& source, const TensorSlice& slice, std::uint64_t index,
                         std::int64_t bytes) const {
    return file(source.name, slice.file).bytes(slice.offset + index * slice.stride, static_cast<std::uint64_t>(bytes));
  }

  Matrix view(const MatrixSource& source, const MatrixPart& part, std::uint64_t index) const {
    Matrix matrix{.format = source.format,
                  .element_type = source.element_type,
                  .group_size = source.group_size,
                  .rows = source.rows,
                  .columns = source.columns};
    matrix.weight = slice(source, part.weight, index, matrix.rows * matrix.row_bytes());
    if (matrix.is_affine()) {
      matrix.scales = slice(source, part.scales, index, matrix.rows * matrix.scale_row_bytes());
      matrix.biases = slice(source, part.biases, index, matrix.rows * matrix.scale_row_bytes());
    }
    return matrix;
  }

  const ModelConfig& config_;
  const std::vector<MappedFile>& files_;
  std::unordered_map<std::string, const MatrixSource*> matrices_;
  std::unordered_map<std::string, const VectorSource*> vectors_;
};

std::unique_ptr<GdnWeights> bind_gdn(const ModelConfig& config, const Binder& binder, const std::string& prefix) {
  auto gdn = std::make_unique<GdnWeights>();
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t heads = config.linear_num_value_heads;
  gdn->in_proj_qkv = binder.matrix(prefix + "in_proj_qkv", config.linear_conv_dim(), hidden);
  gdn->in_proj_z = binder.matrix(prefix + "in_proj_z", config.linear_value_dim(), hidden);
  gdn->in_proj_b = binder.matrix(prefix + "in_proj_b", heads, hidden);
  gdn->in_proj_a = binder.matrix(prefix + "in_proj_a", heads, hidden);
  gdn->out_proj = binder.matrix(prefix + "out_proj", hidden, config.linear_value_dim());
  gdn->conv1d = binder.vector(prefix + "conv1d", config.linear_conv_dim() * config.linear_conv_kernel_dim);
  gdn->decay_rate = binder.vector(prefix + "A_log", heads);
  for (float& rate : gdn->decay_rate) rate = std::exp(rate);
  gdn->dt_bias = binder.vector(prefix + "dt_bias", heads);
  gdn->norm = binder.vector(prefix + "norm", config.linear_value_head_dim);
  return gdn;
}

std::unique_ptr<AttentionWeights> bind_attention(const ModelConfig& config, const Binder& binder,
                                                 const std::string& prefix) {
  auto attention = std::make_unique<AttentionWeights>();
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t query_dim = config.num_attention_heads * config.head_dim;
  const std::int64_t key_dim = config.num_key_value_heads * config.head_dim;
  attention->q_proj = binder.matrix(prefix + "q_proj", 2 * query_dim, hidden);
  attention->k_proj = binder.matrix(prefix + "k_proj", key_dim, hidden);
  attention->v_proj = binder.matrix(prefix + "v_proj", key_dim, hidden);
  attention->o_proj = binder.matrix(prefix + "o_proj", hidden, query_dim);
  attention->q_norm = binder.vector(prefix + "q_norm", config.head_dim);
  attention->k_norm = binder.vector(prefix + "k_norm", config.head_dim);
  return attention;
}

MoeWeights bind_moe(const ModelConfig& config, const Binder& binder, const std::string& prefix) {
  MoeWeights moe;
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t intermediate = config.moe_intermediate_size;
  moe.router = binder.matrix(prefix + "gate", config.num_experts, hidden);
  moe.shared_expert_gate = binder.matrix(prefix + "shared_expert_gate", 1, hidden);
  moe.shared_expert = binder.mlp(prefix + "shared_expert.", config.shared_expert_intermediate_size);
  const auto gates = binder.matrices(prefix + "experts.gate_proj", config.num_experts, intermediate, hidden);
  const auto ups = binder.matrices(prefix + "experts.up_proj", config.num_experts, intermediate, hidden);
  const auto downs = binder.matrices(prefix + "experts.down_proj", config.num_experts, hidden, intermediate);
  moe.experts.reserve(gates.size());
  for (std::size_t i = 0; i < gates.size(); ++i) moe.experts.push_back({gates[i], ups[i], downs[i]});
  return moe;
}

}  // namespace

ModelWeights ModelWeights::bind(const ModelConfig& config, const CheckpointSource& source, FileAccess access) {
  const DefaultFloats floats;  // vectors are converted
  config.validate();
  if (source.files.size() != source.identities.size()) {
    throw Error(ErrorKind::checkpoint, "the checkpoint source lists different numbers of files and identities");
  }
  ModelWeights weights;
  weights.files.reserve(source.files.size());
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    weights.files.emplace_back(source.files[i], source.identities[i], access);
  }

  const Binder binder(config, source, weights.files);
  weights.embed_tokens = binder.matrix("embed_tokens", config.vocab_size, config.hidden_size);
  weights.lm_head = binder.matrix("lm_head", config.vocab_size, config.hidden_size);
  weights.norm = binder.vector("norm", config.hidden_size);
  weights.layers.reserve(config.layer_types.size());
  for (std::size_t i = 0; i < config.layer_types.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    LayerWeights layer;
    layer.input_layernorm = binder.vector(prefix + "input_layernorm", config.hidden_size);
    layer.post_attention_layernorm = binder.vector(prefix + "post_attention_layernorm", config.hidden_size);
    if (config.layer_types[i] == LayerType::linear_attention) {
      layer.gdn = bind_gdn(config, binder, prefix + "linear_attn.");
    } else {
      layer.attention = bind_attention(config, binder, prefix + "self_attn.");
    }
    layer.moe = bind_moe(config, binder, prefix + "mlp.");
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

}  // namespace lily
