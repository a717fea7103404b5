// gpu/described_weights.cpp -- lays out the weights of a config contiguously, as an aligned checkpoint would.
#include "gpu/described_weights.h"

#include <sys/mman.h>

#include <vector>

#include "base/error.h"

namespace lily::gpu {
namespace {

constexpr std::uint64_t kAlignment = 16;

// Hands out addresses from `base`, which may be null to measure.
class Layout {
 public:
  Layout(const ModelConfig& config, const DeclaredFormats& formats, const std::byte* base)
      : config_(config), formats_(formats), base_(base) {}

  [[nodiscard]] std::uint64_t used() const { return used_; }
  [[nodiscard]] ModelWeights all();

 private:
  const std::byte* take(std::uint64_t bytes) {
    const std::uint64_t at = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return base_ == nullptr ? nullptr : base_ + at;
  }
  std::vector<Matrix> matrices(const std::string& name, std::int64_t count, std::int64_t rows, std::int64_t columns);
  Matrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    return matrices(name, 1, rows, columns).front();
  }
  MlpWeights mlp(const std::string& prefix, std::int64_t intermediate);
  std::unique_ptr<GdnWeights> gdn(const std::string& prefix);
  std::unique_ptr<AttentionWeights> attention(const std::string& prefix);
  MoeWeights moe(const std::string& prefix);

  const ModelConfig& config_;
  const DeclaredFormats& formats_;
  const std::byte* base_;
  std::uint64_t used_ = 0;
};

std::vector<float> zeros(std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); }

std::vector<Matrix> Layout::matrices(const std::string& name, std::int64_t count, std::int64_t rows,
                                     std::int64_t columns) {
  const auto found = formats_.find(name);
  const DeclaredFormat format = found == formats_.end() ? DeclaredFormat{} : found->second;
  const Matrix shape{.format = format.format,
                     .element_type = ElementType::bfloat16,
                     .group_size = format.group_size,
                     .rows = rows,
                     .columns = columns};
  if (shape.is_affine() && columns % shape.group_size != 0) {
    throw Error(ErrorKind::config, "weight " + name + " has rows of " + std::to_string(columns) +
                                       " columns, which are not whole groups of " + std::to_string(shape.group_size));
  }
  std::vector<Matrix> all(static_cast<std::size_t>(count), shape);
  const auto place = [&](const std::byte* Matrix::* field, std::int64_t bytes) {
    const std::byte* first = take(static_cast<std::uint64_t>(bytes * count));
    for (std::int64_t i = 0; i < count; ++i) {
      all[static_cast<std::size_t>(i)].*field = first == nullptr ? nullptr : first + i * bytes;
    }
  };
  place(&Matrix::weight, rows * shape.row_bytes());
  if (shape.is_affine()) {
    place(&Matrix::scales, rows * shape.scale_row_bytes());
    place(&Matrix::biases, rows * shape.scale_row_bytes());
  }
  return all;
}

MlpWeights Layout::mlp(const std::string& prefix, std::int64_t intermediate) {
  return {matrix(prefix + "gate_proj", intermediate, config_.hidden_size),
          matrix(prefix + "up_proj", intermediate, config_.hidden_size),
          matrix(prefix + "down_proj", config_.hidden_size, intermediate)};
}

std::unique_ptr<GdnWeights> Layout::gdn(const std::string& prefix) {
  auto all = std::make_unique<GdnWeights>();
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t heads = config_.linear_num_value_heads;
  all->in_proj_qkv = matrix(prefix + "in_proj_qkv", config_.linear_conv_dim(), hidden);
  all->in_proj_z = matrix(prefix + "in_proj_z", config_.linear_value_dim(), hidden);
  all->in_proj_b = matrix(prefix + "in_proj_b", heads, hidden);
  all->in_proj_a = matrix(prefix + "in_proj_a", heads, hidden);
  all->out_proj = matrix(prefix + "out_proj", hidden, config_.linear_value_dim());
  all->conv1d = zeros(config_.linear_conv_dim() * config_.linear_conv_kernel_dim);
  all->decay_rate = zeros(heads);
  all->dt_bias = zeros(heads);
  all->norm = zeros(config_.linear_value_head_dim);
  return all;
}

std::unique_ptr<AttentionWeights> Layout::attention(const std::string& prefix) {
  auto all = std::make_unique<AttentionWeights>();
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t query_dim = config_.num_attention_heads * config_.head_dim;
  const std::int64_t key_dim = config_.num_key_value_heads * config_.head_dim;
  all->q_proj = matrix(prefix + "q_proj", 2 * query_dim, hidden);
  all->k_proj = matrix(prefix + "k_proj", key_dim, hidden);
  all->v_proj = matrix(prefix + "v_proj", key_dim, hidden);
  all->o_proj = matrix(prefix + "o_proj", hidden, query_dim);
  all->q_norm = zeros(config_.head_dim);
  all->k_norm = zeros(config_.head_dim);
  return all;
}

MoeWeights Layout::moe(const std::string& prefix) {
  MoeWeights all;
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t intermediate = config_.moe_intermediate_size;
  all.router = matrix(prefix + "gate", config_.num_experts, hidden);
  all.shared_expert_gate = matrix(prefix + "shared_expert_gate", 1, hidden);
  all.shared_expert = mlp(prefix + "shared_expert.", config_.shared_expert_intermediate_size);
  const auto gates = matrices(prefix + "experts.gate_proj", config_.num_experts, intermediate, hidden);
  const auto ups = matrices(prefix + "experts.up_proj", config_.num_experts, intermediate, hidden);
  const auto downs = matrices(prefix + "experts.down_proj", config_.num_experts, hidden, intermediate);
  for (std::size_t i = 0; i < gates.size(); ++i) all.experts.push_back({gates[i], ups[i], downs[i]});
  return all;
}

ModelWeights Layout::all() {
  ModelWeights weights;
  weights.embed_tokens = matrix("embed_tokens", config_.vocab_size, config_.hidden_size);
  weights.lm_head = matrix("lm_head", config_.vocab_size, config_.hidden_size);
  weights.norm = zeros(config_.hidden_size);
  for (std::size_t i = 0; i < config_.layer_types.size(); ++i) {
    const std::string prefix = "layers." + std::to_string(i) + ".";
    LayerWeights layer;
    layer.input_layernorm = zeros(config_.hidden_size);
    layer.post_attention_layernorm = zeros(config_.hidden_size);
    if (config_.layer_types[i] == LayerType::linear_attention) {
      layer.gdn = gdn(prefix + "linear_attn.");
    } else {
      layer.attention = attention(prefix + "self_attn.");
    }
    layer.moe = moe(prefix + "mlp.");
    weights.layers.push_back(std::move(layer));
  }
  return weights;
}

std::uint64_t bytes_of(const ModelConfig& config, const DeclaredFormats& formats) {
  Layout layout(config, formats, nullptr);
  static_cast<void>(layout.all());
  return layout.used();
}

}  // namespace

ReservedAddresses::ReservedAddresses(std::uint64_t bytes) : size_(bytes) {
  void* const address = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorKind::memory_limit,
                "the system does not reserve " + std::to_string(bytes) + " bytes of addresses");
  }
  data_ = static_cast<const std::byte*>(address);
}

ReservedAddresses::~ReservedAddresses() { ::munmap(const_cast<std::byte*>(data_), size_); }

DescribedWeights::DescribedWeights(const ModelConfig& config, const DeclaredFormats& formats)
    : addresses_(bytes_of(config, formats)), weights_(Layout(config, formats, addresses_.data()).all()) {}

}  // namespace lily::gpu
