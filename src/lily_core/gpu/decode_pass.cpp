// gpu/decode_pass.cpp -- the kernels of a decode step: eight for a Gated DeltaNet layer, nine for an attention layer.
#include "gpu/decode_pass.h"

#include <algorithm>
#include <array>

#include "base/sampling_arithmetic.h"
#include "gpu/layer_encoder.h"

namespace lily::gpu {
namespace {

// General decode attention: positions a split should have, and the most splits.
constexpr std::int64_t kSplitPositions = 256;
constexpr std::int64_t kMaxSplits = 64;

// Query heads that share each KV read (D6).
std::uint32_t packed_query_heads(const ModelConfig& config, const Options& options) {
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  if (!options.pack_query_heads) return 1;
  return group % 4 == 0 ? 4 : group % 2 == 0 ? 2 : 1;
}

class DecodeEncoder : private LayerEncoder {
 public:
  DecodeEncoder(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state)
      : LayerEncoder(encoder, config, weights, state, 1, ProjectedType::float32),
        split_(attention_split(config, options_, state.position)) {}

  void encode(const std::optional<DeviceChoice>& choice);

 private:
  void gdn_layer(std::size_t layer);
  void attention_layer(std::size_t layer);
  void attend(const CacheViews& cache, const View& prepared, const View& query, const View& out,
              const args::AttentionArgs& arguments);
  void moe(std::size_t layer);
  void expert_inputs(const DeviceLayerWeights& layer, const View& chosen, const View& act, const View& shared_act);
  void expert_outputs(const DeviceLayerWeights& layer, const View& chosen, const View& weight, const View& shared_gate,
                      const View& act, const View& shared_act);
  void expert_gemv(const ExpertMatrices& experts, const View& x, const View* norm, const View& chosen,
                   std::uint32_t count, const View& out);
  void choose_token(const DeviceChoice& choice);
  [[nodiscard]] GemvInput normalized(const View& weight) const { return {hidden_, &weight}; }

  const AttentionSplit split_;
};

void DecodeEncoder::gdn_layer(std::size_t layer) {
  const DeviceGdnWeights& gdn = *weights_.layers[layer].gdn;
  const GdnViews& state = state_.gdn[layer];
  const args::GdnArgs arguments = gdn_args(1);
  const auto key_size = static_cast<std::uint64_t>(config_.linear_key_dim());
  const auto value_size = static_cast<std::uint64_t>(config_.linear_value_dim());
  const std::uint32_t heads = arguments.value_heads;
  const View qkv = encoder_.floats(2 * key_size + value_size);
  const View z = encoder_.floats(value_size);
  const View b = encoder_.floats(heads);
  const View a = encoder_.floats(heads);
  const std::array<GemvSegment, 4> inputs = {
      {{&gdn.in_proj_qkv, qkv}, {&gdn.in_proj_z, z}, {&gdn.in_proj_b, b}, {&gdn.in_proj_a, a}}};
  encoder_.gemv(inputs, normalized(weights_.layers[layer].input_layernorm), args::kStoreDefault);

  std::vector<Operand> operands = scan_operands(convolve(gdn, state, qkv, a, b), state);
  const auto key_dim = constant(args::kKeyDimIndex, arguments.key_dim);
  const View mixed = encoder_.halves(value_size);
  if (options_.fuse_recurrent_norm) {
    operands.insert(operands.end(), {reads(7, z), reads(8, gdn.norm), writes(9, mixed)});
    encoder_.launch("gdn_step", {key_dim}, std::move(operands), 10, arguments, {heads, 1, 1}, args::kStepThreads);
  } else {
    const View read = encoder_.floats(value_size);
    operands.push_back(writes(7, read));
    encoder_.launch("gdn_scan", {key_dim}, std::move(operands), 8, arguments,
                    {divide_up(arguments.value_dim, args::kScanColumns), heads, 1}, args::kScanThreads);
    encoder_.launch("gdn_norm_f32z", {}, {reads(0, read), reads(1, z), reads(2, gdn.norm), writes(3, mixed)}, 4,
                    arguments, {heads, 1, 1}, args::kSimdWidth);
  }
  encoder_.gemv(gdn.out_proj, {mixed}, hidden_, args::kAccumulateFloat);
}

void DecodeEncoder::attend(const CacheViews& cache, const View& prepared, const View& query, const View& out,
                           const args::AttentionArgs& arguments) {
  const std::uint32_t query_heads = packed_query_heads(config_, options_);
  const std::uint64_t cache_bytes =
      static_cast<std::uint64_t>(state_.position + 1) * arguments.kv_heads * arguments.head_dim * 2;
  const View partial = encoder_.floats(std::uint64_t{split_.splits} * arguments.heads * (arguments.head_dim + 2));
  const auto head_dim = constant(args::kHeadDimIndex, arguments.head_dim);
  encoder_.launch(split_.blocked ? "attention_decode_blocked" : "attention_decode",
                  {head_dim, constant(args::kQueryHeadsIndex, query_heads),
                   constant(args::kCoalescedIndex, options_.coalesced_cache ? 1 : 0)},
                  {reads(0, prepared), reads(1, cache.keys, cache_bytes), reads(2, cache.values, cache_bytes),
                   reads(3, state_.device_position), writes(4, partial)},
                  5, arguments, {split_.splits, arguments.heads / query_heads, 1}, args::kAttentionThreads);
  encoder_.launch("attention_reduce", {head_dim}, {reads(0, partial), reads(1, query), writes(2, out)}, 3, arguments,
                  {arguments.heads, 1, 1}, args::kAttentionThreads);
}

void DecodeEncoder::attention_layer(std::size_t layer) {
  const DeviceAttentionWeights& attention = *weights_.layers[layer].attention;
  const CacheViews& cache = state_.cache[layer];
  const auto query_size = static_cast<std::uint64_t>(config_.num_attention_heads * config_.head_dim);
  const auto key_size = static_cast<std::uint64_t>(config_.num_key_value_heads * config_.head_dim);
  const View query = encoder_.floats(2 * query_size);
  const View key = encoder_.floats(key_size);
  const View value = encoder_.floats(key_size);
  const std::array<GemvSegment, 3> inputs = {
      {{&attention.q_proj, query}, {&attention.k_proj, key}, {&attention.v_proj, value}}};
  encoder_.gemv(inputs, normalized(weights_.layers[layer].input_layernorm), args::kStoreDefault);
  const View prepared = encoder_.halves(query_size);
  const args::AttentionArgs arguments = attention_args(1, split_.splits);
  prepare_attention(attention, cache, query, key, value, prepared, arguments);
  const View mixed = encoder_.halves(query_size);
  attend(cache, prepared, query, mixed, arguments);
  encoder_.gemv(attention.o_proj, {mixed}, hidden_, args::kAccumulateFloat);
}

void DecodeEncoder::expert_gemv(const ExpertMatrices& experts, const View& x, const View* norm, const View& chosen,
                                std::uint32_t count, const View& out) {
  const DeviceMatrix& matrix = experts.matrix;
  std::vector<Operand> operands;
  add_matrix(operands, 0, matrix, count);
  operands.push_back(reads(3, x));
  operands.push_back(norm != nullptr ? reads(4, *norm) : unused(4, operands.back()));
  operands.push_back(reads(5, chosen));
  operands.push_back(writes(6, out));
  encoder_.launch(
      "expert_gemv",
      {constant(args::kBitsIndex, matrix.format.bits), constant(args::kGroupSizeIndex, matrix.format.group_size),
       constant(args::kVectorTypeIndex, vector_type(norm))},
      std::move(operands), 7,
      args::ExpertGemvArgs{.rows = matrix.rows,
                           .columns = matrix.columns,
                           .experts_per_token = count,
                           .eps = encoder_.eps(),
                           .expert_words = experts.expert_words,
                           .expert_scales = experts.expert_scales},
      {divide_up(matrix.rows, args::kGemvRows), count, 1}, args::kGemvThreads);
}

// Whether one launch can read both stacks: the same formats and distances.
bool alike(const ExpertMatrices& left, const ExpertMatrices& right) {
  return left.matrix.format == right.matrix.format && left.expert_words == right.expert_words &&
         left.expert_scales == right.expert_scales;
}

ExpertMatrices single(const DeviceMatrix& matrix) { return {.matrix = matrix, .experts = 1}; }

void DecodeEncoder::expert_inputs(const DeviceLayerWeights& layer, const View& chosen, const View& act,
                                  const View& shared_act) {
  const auto count = narrow(config_.num_experts_per_tok);
  const std::uint32_t intermediate = layer.gate_proj.matrix.rows;
  const std::uint32_t shared_intermediate = layer.shared_gate_proj.rows;
  const MatrixFormatKey format = layer.gate_proj.matrix.format;
  const bool one_format = alike(layer.gate_proj, layer.up_proj) && layer.shared_gate_proj.format == format &&
                          layer.shared_up_proj.format == format;
  if (!options_.fuse_expert_inputs || !one_format) {
    const View* norm = &layer.post_attention_layernorm;
    const View none = weights_.iota.part(0, 4);
    const View gate = encoder_.halves(std::uint64_t{count} * intermediate);
    const View up = encoder_.halves(std::uint64_t{count} * intermediate);
    const View shared_gate = encoder_.halves(shared_intermediate);
    const View shared_up = encoder_.halves(shared_intermediate);
    expert_gemv(layer.gate_proj, hidden_, norm, chosen, count, gate);
    expert_gemv(layer.up_proj, hidden_, norm, chosen, count, up);
    expert_gemv(single(layer.shared_gate_proj), hidden_, norm, none, 1, shared_gate);
    expert_gemv(single(layer.shared_up_proj), hidden_, norm, none, 1, shared_up);
    encoder_.silu_multiply(gate, up, count * intermediate, act);
    encoder_.silu_multiply(shared_gate, shared_up, shared_intermediate, shared_act);
    return;
  }
  std::vector<Operand> operands;
  add_matrix(operands, 0, layer.gate_proj.matrix, count);
  add_matrix(operands, 3, layer.up_proj.matrix, count);
  add_matrix(operands, 6, layer.shared_gate_proj);
  add_matrix(operands, 9, layer.shared_up_proj);
  operands.insert(operands.end(), {reads(12, hidden_), reads(13, layer.post_attention_layernorm), reads(14, chosen),
                                   writes(15, act), writes(16, shared_act)});
  encoder_.launch(
      "expert_gate_up", {constant(args::kBitsIndex, format.bits), constant(args::kGroupSizeIndex, format.group_size)},
      std::move(operands), 17,
      args::ExpertArgs{.hidden_size = narrow(config_.hidden_size),
                       .intermediate = intermediate,
                       .shared_intermediate = shared_intermediate,
                       .experts_per_token = count,
                       .eps = encoder_.eps(),
                       .expert_words = layer.gate_proj.expert_words,
                       .expert_scales = layer.gate_proj.expert_scales},
      {divide_up(std::max(intermediate, shared_intermediate), args::kGemvRows), count + 1, 1}, args::kGemvThreads);
}

void DecodeEncoder::expert_outputs(const DeviceLayerWeights& layer, const View& chosen, const View& weight,
                                   const View& shared_gate, const View& act, const View& shared_act) {
  const auto count = narrow(config_.num_experts_per_tok);
  const auto hidden_size = narrow(config_.hidden_size);
  const MatrixFormatKey format = layer.down_proj.matrix.format;
  if (!options_.fuse_expert_outputs || layer.shared_down_proj.format != format) {
    const View routed = encoder_.halves(std::uint64_t{count} * hidden_size);
    const View shared = encoder_.halves(hidden_size);
    expert_gemv(layer.down_proj, act, nullptr, chosen, count, routed);
    expert_gemv(single(layer.shared_down_proj), shared_act, nullptr, weights_.iota.part(0, 4), 1, shared);
    combine_experts(routed, weights_.iota, weight, shared, shared_gate, 1, hidden_);
    return;
  }
  std::vector<Operand> operands;
  add_matrix(operands, 0, layer.down_proj.matrix, count);
  add_matrix(operands, 3, layer.shared_down_proj);
  operands.insert(operands.end(), {reads(6, act), reads(7, shared_act), reads(8, chosen), reads(9, weight),
                                   reads(10, shared_gate), updates(11, hidden_)});
  encoder_.launch("expert_down",
                  {constant(args::kBitsIndex, format.bits), constant(args::kGroupSizeIndex, format.group_size)},
                  std::move(operands), 12,
                  args::ExpertArgs{.hidden_size = hidden_size,
                                   .intermediate = layer.down_proj.matrix.columns,
                                   .shared_intermediate = layer.shared_down_proj.columns,
                                   .experts_per_token = count,
                                   .eps = encoder_.eps(),
                                   .expert_words = layer.down_proj.expert_words,
                                   .expert_scales = layer.down_proj.expert_scales},
                  {divide_up(hidden_size, args::kDownRows), 1, 1}, args::kDownThreads);
}

void DecodeEncoder::moe(std::size_t layer) {
  const DeviceLayerWeights& weights = weights_.layers[layer];
  const auto count = narrow(config_.num_experts_per_tok);
  const View logits = encoder_.floats(narrow(config_.num_experts));
  const View shared_gate = encoder_.floats(1);
  const std::array<GemvSegment, 2> inputs = {{{&weights.router, logits}, {&weights.shared_expert_gate, shared_gate}}};
  encoder_.gemv(inputs, normalized(weights.post_attention_layernorm), args::kStoreDefault);
  const View chosen = encoder_.words(count);
  const View weight = encoder_.floats(count);
  route(logits, 1, chosen, weight);
  const View act = encoder_.halves(std::uint64_t{count} * weights.gate_proj.matrix.rows);
  const View shared_act = encoder_.halves(weights.shared_gate_proj.rows);
  expert_inputs(weights, chosen, act, shared_act);
  expert_outputs(weights, chosen, weight, shared_gate, act, shared_act);
}

void DecodeEncoder::choose_token(const DeviceChoice& choice) {
  const auto candidates = narrow(std::clamp<std::int64_t>(choice.candidates, 1, config_.vocab_size));
  const View logits = state_.logits.part(0, std::uint64_t{candidates} * 4);
  const bool draws = choice.temperature > 0.0 && choice.top_k != 1;
  const SamplingUnits units =
      draws ? sampling::units_of(choice.temperature, choice.top_p, choice.min_p) : SamplingUnits{};
  const args::SampleArgs arguments{.candidates = candidates,
                                   .scale = units.scale,
                                   .top_k = narrow(std::min<std::int64_t>(choice.top_k, candidates)),
                                   .top_p = units.top_p,
                                   .min_p = units.min_p,
                                   .seed_low = static_cast<std::uint32_t>(choice.seed),
                                   .seed_high = static_cast<std::uint32_t>(choice.seed >> 32)};
  if (draws) {
    encoder_.launch("sample_token", {},
                    {reads(0, logits), writes(1, state_.next_token), reads(2, state_.next_device_position)}, 3,
                    arguments, {1, 1, 1}, args::kSampleThreads);
    return;
  }
  const View best = encoder_.floats(args::kArgmaxParts);
  const View index = encoder_.words(args::kArgmaxParts);
  encoder_.launch("argmax_partial", {}, {reads(0, logits), writes(1, best), writes(2, index)}, 3, arguments,
                  {args::kArgmaxParts, 1, 1}, args::kArgmaxThreads);
  encoder_.launch("argmax_final", {}, {reads(0, best), reads(1, index), writes(2, state_.next_token)}, 3, arguments,
                  {1, 1, 1}, args::kArgmaxThreads);
}

void DecodeEncoder::encode(const std::optional<DeviceChoice>& choice) {
  encoder_.launch("advance_position", {}, {reads(0, state_.device_position), writes(1, state_.next_device_position)}, 2,
                  args::AdvanceArgs{.rows = 1}, {1, 1, 1}, args::kSimdWidth);
  encoder_.embed(state_.token, weights_.embed_tokens, 1, hidden_);
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    if (weights_.layers[layer].gdn != nullptr) {
      gdn_layer(layer);
    } else {
      attention_layer(layer);
    }
    moe(layer);
  }
  encoder_.gemv(weights_.lm_head, normalized(weights_.norm), state_.logits, args::kStoreDefault);
  if (choice) choose_token(*choice);
}

}  // namespace

AttentionSplit attention_split(const ModelConfig& config, const Options& options, std::int64_t position) {
  const std::int64_t positions = position + 1;
  const bool shape_fits = config.head_dim == 256 && config.num_attention_heads == 8 * config.num_key_value_heads;
  if (options.blocked_attention && shape_fits && positions >= options.blocked_attention_threshold) {
    return {true, divide_up(static_cast<std::uint64_t>(positions), args::kAttentionBlock)};
  }
  const std::int64_t wanted = (positions + kSplitPositions - 1) / kSplitPositions;
  return {false, static_cast<std::uint32_t>(std::min(wanted, kMaxSplits))};
}

void encode_decode(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
                   const std::optional<DeviceChoice>& choice) {
  DecodeEncoder(encoder, config, weights, state).encode(choice);
}

}  // namespace lily::gpu
