// gpu/decode_pass.cpp -- the kernels of a decode step: eight for a Gated DeltaNet layer, nine for an attention layer.
#include "gpu/decode_pass.h"

#include <algorithm>
#include <array>

#include "base/sampling_arithmetic.h"

namespace lily::gpu {
namespace {

// General decode attention: positions a split should have, and the most splits.
constexpr std::int64_t kSplitPositions = 256;
constexpr std::int64_t kMaxSplits = 64;

device::FunctionConstant constant(args::FunctionConstantIndex index, std::uint32_t value) {
  return {static_cast<std::uint32_t>(index), static_cast<std::int32_t>(value)};
}

std::uint32_t narrow(std::int64_t value) { return static_cast<std::uint32_t>(value); }

// Query heads that share each KV read (D6).
std::uint32_t packed_query_heads(const ModelConfig& config, const Options& options) {
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  if (!options.pack_query_heads) return 1;
  return group % 4 == 0 ? 4 : group % 2 == 0 ? 2 : 1;
}

class DecodeEncoder {
 public:
  DecodeEncoder(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state)
      : encoder_(encoder),
        options_(encoder.options()),
        config_(config),
        weights_(weights),
        state_(state),
        hidden_(encoder.floats(static_cast<std::uint64_t>(config.hidden_size))) {}

  void encode(const std::optional<DeviceChoice>& choice);

 private:
  void gdn_layer(std::size_t layer);
  void attention_layer(std::size_t layer);
  void prepare_attention(const DeviceAttentionWeights& attention, const CacheViews& cache, const View& query,
                         const View& key, const View& value, const View& prepared);
  void attend(const CacheViews& cache, const View& prepared, const View& query, const View& out);
  void moe(std::size_t layer);
  void expert_inputs(const DeviceLayerWeights& layer, const View& chosen, const View& act, const View& shared_act);
  void expert_outputs(const DeviceLayerWeights& layer, const View& chosen, const View& weight, const View& shared_gate,
                      const View& act, const View& shared_act);
  void expert_gemv(const ExpertMatrices& experts, const View& x, const View* norm, const View& chosen,
                   std::uint32_t count, const View& out);
  void choose_token(const DeviceChoice& choice);
  [[nodiscard]] args::GdnArgs gdn_args() const;
  [[nodiscard]] args::AttentionArgs attention_args() const;
  [[nodiscard]] GemvInput normalized(const View& weight) const { return {hidden_, &weight}; }

  Encoder& encoder_;
  const Options& options_;
  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const StateViews& state_;
  View hidden_;  // f32 [hidden_size], the residual stream
};

args::GdnArgs DecodeEncoder::gdn_args() const {
  return {.tokens = 1,
          .key_heads = narrow(config_.linear_num_key_heads),
          .value_heads = narrow(config_.linear_num_value_heads),
          .key_dim = narrow(config_.linear_key_head_dim),
          .value_dim = narrow(config_.linear_value_head_dim),
          .kernel_size = narrow(config_.linear_conv_kernel_dim),
          .eps = encoder_.eps()};
}

args::AttentionArgs DecodeEncoder::attention_args() const {
  return {.rows = 1,
          .heads = narrow(config_.num_attention_heads),
          .kv_heads = narrow(config_.num_key_value_heads),
          .head_dim = narrow(config_.head_dim),
          .rotary_dim = narrow(config_.rotary_dim),
          .capacity = state_.capacity,
          .splits = attention_split(config_, options_, state_.position).splits,
          .eps = encoder_.eps()};
}

void DecodeEncoder::gdn_layer(std::size_t layer) {
  const DeviceGdnWeights& gdn = *weights_.layers[layer].gdn;
  const GdnViews& state = state_.gdn[layer];
  const args::GdnArgs arguments = gdn_args();
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

  const View query = encoder_.halves(key_size);
  const View key = encoder_.halves(key_size);
  const View value = encoder_.halves(value_size);
  const View decay = encoder_.floats(heads);
  const View beta = encoder_.floats(heads);
  encoder_.launch("gdn_conv", {},
                  {reads(0, qkv), reads(1, a), reads(2, b), reads(3, gdn.conv1d), reads(4, gdn.decay_rate),
                   reads(5, gdn.dt_bias), reads(6, state.conv_state), writes(7, state.next_conv_state),
                   writes(8, query), writes(9, key), writes(10, value), writes(11, decay), writes(12, beta)},
                  13, arguments, {2 * arguments.key_heads + heads, 1, 1}, args::kRowThreads);

  const View mixed = encoder_.halves(value_size);
  if (options_.fuse_recurrent_norm) {
    encoder_.launch(
        "gdn_step", {constant(args::kKeyDimIndex, arguments.key_dim)},
        {reads(0, query), reads(1, key), reads(2, value), reads(3, decay), reads(4, beta), reads(5, state.state),
         writes(6, state.next_state), reads(7, z), reads(8, gdn.norm), writes(9, mixed)},
        10, arguments, {heads, 1, 1}, args::kStepThreads);
  } else {
    const View read = encoder_.floats(value_size);
    encoder_.launch("gdn_scan", {constant(args::kKeyDimIndex, arguments.key_dim)},
                    {reads(0, query), reads(1, key), reads(2, value), reads(3, decay), reads(4, beta),
                     reads(5, state.state), writes(6, state.next_state), writes(7, read)},
                    8, arguments, {divide_up(arguments.value_dim, args::kScanColumns), heads, 1}, args::kScanThreads);
    encoder_.launch("gdn_norm_f32z", {}, {reads(0, read), reads(1, z), reads(2, gdn.norm), writes(3, mixed)}, 4,
                    arguments, {heads, 1, 1}, args::kSimdWidth);
  }
  encoder_.gemv(gdn.out_proj, {mixed}, hidden_, args::kAccumulateFloat);
}

void DecodeEncoder::prepare_attention(const DeviceAttentionWeights& attention, const CacheViews& cache,
                                      const View& query, const View& key, const View& value, const View& prepared) {
  const args::AttentionArgs arguments = attention_args();
  const std::uint64_t row_bytes = std::uint64_t{arguments.kv_heads} * arguments.head_dim * 2;
  const auto head_dim = constant(args::kHeadDimIndex, arguments.head_dim);
  std::vector<Operand> operands = {reads(0, query),
                                   reads(1, key),
                                   reads(2, value),
                                   reads(3, attention.q_norm),
                                   reads(4, attention.k_norm),
                                   reads(5, weights_.rope_frequencies),
                                   reads(6, state_.device_position),
                                   writes(7, prepared)};
  if (options_.fuse_attention_inputs) {
    operands.push_back(writes(8, cache.keys, row_bytes));
    operands.push_back(writes(9, cache.values, row_bytes));
    encoder_.launch("attention_prepare", {head_dim}, std::move(operands), 10, arguments,
                    {arguments.heads + 2 * arguments.kv_heads, 1, 1}, args::kSimdWidth);
    return;
  }
  const View rotated = encoder_.halves(std::uint64_t{arguments.kv_heads} * arguments.head_dim);
  std::erase_if(operands, [](const Operand& operand) { return operand.index == 2; });
  operands.push_back(writes(8, rotated));
  encoder_.launch("attention_norm_rope", {head_dim}, std::move(operands), 10, arguments,
                  {arguments.heads + arguments.kv_heads, 1, 1}, args::kSimdWidth);
  encoder_.launch("attention_cache_write", {},
                  {reads(0, rotated), reads(1, value), reads(2, state_.device_position),
                   writes(3, cache.keys, row_bytes), writes(4, cache.values, row_bytes)},
                  5, arguments, {2 * arguments.kv_heads, 1, 1}, args::kSimdWidth);
}

void DecodeEncoder::attend(const CacheViews& cache, const View& prepared, const View& query, const View& out) {
  const args::AttentionArgs arguments = attention_args();
  const AttentionSplit split = attention_split(config_, options_, state_.position);
  const std::uint32_t query_heads = packed_query_heads(config_, options_);
  const std::uint64_t cache_bytes =
      static_cast<std::uint64_t>(state_.position + 1) * arguments.kv_heads * arguments.head_dim * 2;
  const View partial = encoder_.floats(std::uint64_t{split.splits} * arguments.heads * (arguments.head_dim + 2));
  const auto head_dim = constant(args::kHeadDimIndex, arguments.head_dim);
  encoder_.launch(split.blocked ? "attention_decode_blocked" : "attention_decode",
                  {head_dim, constant(args::kQueryHeadsIndex, query_heads),
                   constant(args::kCoalescedIndex, options_.coalesced_cache ? 1 : 0)},
                  {reads(0, prepared), reads(1, cache.keys, cache_bytes), reads(2, cache.values, cache_bytes),
                   reads(3, state_.device_position), writes(4, partial)},
                  5, arguments, {split.splits, arguments.heads / query_heads, 1}, args::kAttentionThreads);
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
  prepare_attention(attention, cache, query, key, value, prepared);
  const View mixed = encoder_.halves(query_size);
  attend(cache, prepared, query, mixed);
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
    encoder_.launch("combine_experts", {},
                    {reads(0, routed), reads(1, weights_.iota), reads(2, weight), reads(3, shared),
                     reads(4, shared_gate), updates(5, hidden_)},
                    6, args::CombineArgs{.rows = 1, .hidden_size = hidden_size, .experts_per_token = count},
                    {divide_up(hidden_size, args::kElementThreads), 1, 1}, args::kElementThreads);
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
  const auto experts = narrow(config_.num_experts);
  const auto count = narrow(config_.num_experts_per_tok);
  const View logits = encoder_.floats(experts);
  const View shared_gate = encoder_.floats(1);
  const std::array<GemvSegment, 2> inputs = {{{&weights.router, logits}, {&weights.shared_expert_gate, shared_gate}}};
  encoder_.gemv(inputs, normalized(weights.post_attention_layernorm), args::kStoreDefault);
  const View chosen = encoder_.words(count);
  const View weight = encoder_.floats(count);
  encoder_.launch(
      "route_rows", {}, {reads(0, logits), writes(1, chosen), writes(2, weight)}, 3,
      args::RouteArgs{
          .rows = 1, .experts = experts, .experts_per_token = count, .normalize = config_.norm_topk_prob ? 1U : 0U},
      {1, 1, 1}, args::kSimdWidth);
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
