// gpu/layer_encoder.cpp -- launches that stand in the layers of prefill and decode.
#include "gpu/layer_encoder.h"

#include <utility>

namespace lily::gpu {

LayerEncoder::LayerEncoder(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights,
                           const StateViews& state, std::uint32_t rows, ProjectedType type)
    : encoder_(encoder),
      options_(encoder.options()),
      config_(config),
      weights_(weights),
      state_(state),
      rows_(rows),
      hidden_(encoder.floats(std::uint64_t{rows} * narrow(config.hidden_size))),
      type_(type) {}

args::GdnArgs LayerEncoder::gdn_args(std::uint32_t tokens) const {
  return {.tokens = tokens,
          .key_heads = narrow(config_.linear_num_key_heads),
          .value_heads = narrow(config_.linear_num_value_heads),
          .key_dim = narrow(config_.linear_key_head_dim),
          .value_dim = narrow(config_.linear_value_head_dim),
          .kernel_size = narrow(config_.linear_conv_kernel_dim),
          .eps = encoder_.eps()};
}

args::AttentionArgs LayerEncoder::attention_args(std::uint32_t rows, std::uint32_t splits) const {
  return {.rows = rows,
          .heads = narrow(config_.num_attention_heads),
          .kv_heads = narrow(config_.num_key_value_heads),
          .head_dim = narrow(config_.head_dim),
          .rotary_dim = narrow(config_.rotary_dim),
          .capacity = state_.capacity,
          .splits = splits,
          .eps = encoder_.eps()};
}

GdnScanInputs LayerEncoder::convolve(const DeviceGdnWeights& gdn, const GdnViews& state, const View& qkv, const View& a,
                                     const View& b) {
  const args::GdnArgs arguments = gdn_args(rows_);
  const std::uint64_t rows = rows_;
  GdnScanInputs out;
  out.query = encoder_.halves(rows * narrow(config_.linear_key_dim()));
  out.key = encoder_.halves(rows * narrow(config_.linear_key_dim()));
  out.value = encoder_.halves(rows * narrow(config_.linear_value_dim()));
  out.decay = encoder_.floats(rows * arguments.value_heads);
  out.beta = encoder_.floats(rows * arguments.value_heads);
  encoder_.launch(
      type_ == ProjectedType::float32 ? "gdn_conv" : "gdn_conv_bf16", {},
      {reads(0, qkv), reads(1, a), reads(2, b), reads(3, gdn.conv1d), reads(4, gdn.decay_rate), reads(5, gdn.dt_bias),
       reads(6, state.conv_state), writes(7, state.next_conv_state), writes(8, out.query), writes(9, out.key),
       writes(10, out.value), writes(11, out.decay), writes(12, out.beta)},
      13, arguments, {2 * arguments.key_heads + arguments.value_heads, rows_, 1}, args::kRowThreads);
  return out;
}

std::vector<Operand> LayerEncoder::scan_operands(const GdnScanInputs& inputs, const GdnViews& state) {
  return {reads(0, inputs.query), reads(1, inputs.key),  reads(2, inputs.value),     reads(3, inputs.decay),
          reads(4, inputs.beta),  reads(5, state.state), writes(6, state.next_state)};
}

void LayerEncoder::prepare_attention(const DeviceAttentionWeights& attention, const CacheViews& cache,
                                     const View& query, const View& key, const View& value, const View& prepared,
                                     const args::AttentionArgs& arguments) {
  const bool is_float = type_ == ProjectedType::float32;
  const std::uint64_t key_elements = std::uint64_t{rows_} * arguments.kv_heads * arguments.head_dim;
  const Operand keys = writes(8, cache.keys, 2 * key_elements);
  const Operand values = writes(9, cache.values, 2 * key_elements);
  const auto head_dim = constant(args::kHeadDimIndex, arguments.head_dim);
  std::vector<Operand> operands = {reads(0, query),
                                   reads(1, key),
                                   reads(3, attention.q_norm),
                                   reads(4, attention.k_norm),
                                   reads(5, weights_.rope_frequencies),
                                   reads(6, state_.device_position),
                                   writes(7, prepared)};
  if (options_.fuse_attention_inputs) {
    operands.insert(operands.end(), {reads(2, value), keys, values});
    encoder_.launch(is_float ? "attention_prepare" : "attention_prepare_bf16", {head_dim}, std::move(operands), 10,
                    arguments, {arguments.heads + 2 * arguments.kv_heads, rows_, 1}, args::kSimdWidth);
    return;
  }
  const View rotated = encoder_.halves(key_elements);
  operands.push_back(writes(8, rotated));
  encoder_.launch(is_float ? "attention_norm_rope" : "attention_norm_rope_bf16", {head_dim}, std::move(operands), 10,
                  arguments, {arguments.heads + arguments.kv_heads, rows_, 1}, args::kSimdWidth);
  encoder_.launch(is_float ? "attention_cache_write" : "attention_cache_write_bf16", {},
                  {reads(0, rotated), reads(1, value), reads(2, state_.device_position),
                   writes(3, cache.keys, 2 * key_elements), writes(4, cache.values, 2 * key_elements)},
                  5, arguments, {2 * arguments.kv_heads, rows_, 1}, args::kSimdWidth);
}

void LayerEncoder::route(const View& logits, std::uint32_t rows, const View& chosen, const View& weight) {
  encoder_.launch("route_rows", {}, {reads(0, logits), writes(1, chosen), writes(2, weight)}, 3,
                  args::RouteArgs{.rows = rows,
                                  .experts = narrow(config_.num_experts),
                                  .experts_per_token = narrow(config_.num_experts_per_tok),
                                  .normalize = config_.norm_topk_prob ? 1U : 0U},
                  {rows, 1, 1}, args::kSimdWidth);
}

void LayerEncoder::combine_experts(const View& routed, const View& place_of, const View& weight, const View& shared,
                                   const View& shared_gate, std::uint32_t rows, const View& hidden) {
  const auto hidden_size = narrow(config_.hidden_size);
  encoder_.launch(
      "combine_experts", {},
      {reads(0, routed), reads(1, place_of), reads(2, weight), reads(3, shared), reads(4, shared_gate),
       updates(5, hidden)},
      6,
      args::CombineArgs{
          .rows = rows, .hidden_size = hidden_size, .experts_per_token = narrow(config_.num_experts_per_tok)},
      {divide_up(hidden_size, args::kElementThreads), rows, 1}, args::kElementThreads);
}

}  // namespace lily::gpu
