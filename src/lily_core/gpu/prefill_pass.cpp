// gpu/prefill_pass.cpp -- the kernels of a prompt chunk: matrix products over rows, scans, attention, grouped experts.
#include "gpu/prefill_pass.h"

#include <utility>

#include "gpu/layer_encoder.h"

namespace lily::gpu {
namespace {

// Rows [first, rows) of a matrix of `rows` equal rows.
View rows_from(const View& view, std::uint32_t first, std::uint32_t rows) {
  const std::uint64_t row_bytes = view.size / rows;
  return view.part(first * row_bytes, (rows - first) * row_bytes);
}

class PrefillEncoder : private LayerEncoder {
 public:
  PrefillEncoder(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
                 const PrefillChunk& chunk)
      : LayerEncoder(encoder, config, weights, state, chunk.rows, ProjectedType::bfloat16), chunk_(chunk) {}

  View encode();

 private:
  // Blocks of one layer; rows below `first` need no result.
  void gdn_block(std::size_t layer, std::uint32_t first);
  void scan(const DeviceGdnWeights& gdn, const GdnViews& state, const View& qkv, const View& a, const View& b,
            const View& out);
  void attention_block(std::size_t layer, std::uint32_t first);
  void moe_block(std::size_t layer, std::uint32_t first);
  void experts(const DeviceLayerWeights& layer, const View& x, std::uint32_t rows, const View& chosen,
               const View& weight, const View& shared_gate, const View& hidden);
  [[nodiscard]] View normalized(const View& weight, std::uint32_t first);

  const PrefillChunk& chunk_;
};

View PrefillEncoder::normalized(const View& weight, std::uint32_t first) {
  const std::uint32_t rows = rows_ - first;
  const auto size = narrow(config_.hidden_size);
  const View out = encoder_.halves(std::uint64_t{rows} * size);
  encoder_.rms_norm(rows_from(hidden_, first, rows_), weight, rows, size, out);
  return out;
}

// Convolution, gates and the scan over all rows: out f32 [rows, value_heads, value_dim].
void PrefillEncoder::scan(const DeviceGdnWeights& gdn, const GdnViews& state, const View& qkv, const View& a,
                          const View& b, const View& out) {
  const args::GdnArgs arguments = gdn_args(rows_);
  std::vector<Operand> operands = scan_operands(convolve(gdn, state, qkv, a, b), state);
  operands.push_back(writes(7, out));
  if (!options_.register_scan) {
    operands.push_back(updates(9, encoder_.pass().scratch(divide_up(rows_, args::kScanBlock) * state.state.size)));
  }
  encoder_.launch(options_.register_scan ? "gdn_scan" : "gdn_scan_blocked",
                  {constant(args::kKeyDimIndex, arguments.key_dim)}, std::move(operands), 8, arguments,
                  {divide_up(arguments.value_dim, args::kScanColumns), arguments.value_heads, 1}, args::kScanThreads);
}

void PrefillEncoder::gdn_block(std::size_t layer, std::uint32_t first) {
  const DeviceGdnWeights& gdn = *weights_.layers[layer].gdn;
  const std::uint64_t rows = rows_;
  const std::uint32_t heads = narrow(config_.linear_num_value_heads);
  const std::uint32_t value_size = narrow(config_.linear_value_dim());
  const std::uint32_t needed = rows_ - first;
  const View x = normalized(weights_.layers[layer].input_layernorm, 0);
  const View qkv = encoder_.halves(rows * narrow(config_.linear_conv_dim()));
  const View a = encoder_.floats(rows * heads);
  const View b = encoder_.floats(rows * heads);
  encoder_.gemm(gdn.in_proj_qkv, x, rows_, qkv, args::kStoreDefault);
  encoder_.gemm(gdn.in_proj_a, x, rows_, a, args::kStoreFloat);
  encoder_.gemm(gdn.in_proj_b, x, rows_, b, args::kStoreFloat);
  const View read = encoder_.floats(rows * value_size);
  scan(gdn, state_.gdn[layer], qkv, a, b, read);
  if (needed == 0) return;
  const View z = encoder_.halves(std::uint64_t{needed} * value_size);
  encoder_.gemm(gdn.in_proj_z, rows_from(x, first, rows_), needed, z, args::kStoreDefault);
  const View mixed = encoder_.halves(std::uint64_t{needed} * value_size);
  encoder_.launch("gdn_norm", {},
                  {reads(0, rows_from(read, first, rows_)), reads(1, z), reads(2, gdn.norm), writes(3, mixed)}, 4,
                  gdn_args(needed), {heads, needed, 1}, args::kSimdWidth);
  encoder_.gemm(gdn.out_proj, mixed, needed, rows_from(hidden_, first, rows_), args::kAccumulateFloat);
}

void PrefillEncoder::attention_block(std::size_t layer, std::uint32_t first) {
  const DeviceAttentionWeights& attention = *weights_.layers[layer].attention;
  const CacheViews& cache = state_.cache[layer];
  const std::uint64_t rows = rows_;
  const std::uint32_t query_size = narrow(config_.num_attention_heads * config_.head_dim);
  const std::uint32_t key_size = narrow(config_.num_key_value_heads * config_.head_dim);
  const std::uint32_t needed = rows_ - first;
  const View x = normalized(weights_.layers[layer].input_layernorm, 0);
  const View query = encoder_.halves(rows * 2 * query_size);
  const View key = encoder_.halves(rows * key_size);
  const View value = encoder_.halves(rows * key_size);
  encoder_.gemm(attention.q_proj, x, rows_, query, args::kStoreDefault);
  encoder_.gemm(attention.k_proj, x, rows_, key, args::kStoreDefault);
  encoder_.gemm(attention.v_proj, x, rows_, value, args::kStoreDefault);
  const View prepared = encoder_.halves(rows * query_size);
  prepare_attention(attention, cache, query, key, value, prepared, attention_args(rows_, 1));
  if (needed == 0) return;
  const args::AttentionArgs arguments = attention_args(needed, 1);
  const std::uint64_t cached = static_cast<std::uint64_t>(state_.position + rows_) * key_size * 2;
  const View mixed = encoder_.halves(std::uint64_t{needed} * query_size);
  encoder_.launch("attention_prefill", {constant(args::kHeadDimIndex, arguments.head_dim)},
                  {reads(0, rows_from(prepared, first, rows_)), reads(1, cache.keys, cached),
                   reads(2, cache.values, cached), reads(3, rows_from(query, first, rows_)),
                   reads(4, first == 0 ? state_.device_position : state_.attention_position), writes(5, mixed)},
                  6, arguments, {divide_up(needed, encoder_.attention_rows()), arguments.heads, 1},
                  args::kAttentionThreads);
  encoder_.gemm(attention.o_proj, mixed, needed, rows_from(hidden_, first, rows_), args::kAccumulateFloat);
}

// The products of the chosen experts and the shared one, added to the residual rows.
void PrefillEncoder::experts(const DeviceLayerWeights& layer, const View& x, std::uint32_t rows, const View& chosen,
                             const View& weight, const View& shared_gate, const View& hidden) {
  const auto hidden_size = narrow(config_.hidden_size);
  const std::uint32_t intermediate = layer.gate_proj.matrix.rows;
  const std::uint32_t shared_intermediate = layer.shared_gate_proj.rows;
  const RowGroups groups = encode_row_groups(encoder_, config_, chosen, rows, chunk_.host);
  const std::uint64_t assignments = groups.assignments;
  const View gate = encoder_.halves(assignments * intermediate);
  const View up = encoder_.halves(assignments * intermediate);
  const View act = encoder_.halves(assignments * intermediate);
  encoder_.grouped_gemm(layer.gate_proj, x, true, groups, gate);
  encoder_.grouped_gemm(layer.up_proj, x, true, groups, up);
  encoder_.silu_multiply(gate, up, static_cast<std::uint32_t>(assignments * intermediate), act);
  const View shared_up = encoder_.halves(std::uint64_t{rows} * shared_intermediate);
  const View shared_in = encoder_.halves(std::uint64_t{rows} * shared_intermediate);
  const View shared_act = encoder_.halves(std::uint64_t{rows} * shared_intermediate);
  encoder_.gemm(layer.shared_gate_proj, x, rows, shared_in, args::kStoreDefault);
  encoder_.gemm(layer.shared_up_proj, x, rows, shared_up, args::kStoreDefault);
  encoder_.silu_multiply(shared_in, shared_up, rows * shared_intermediate, shared_act);
  const View routed = encoder_.halves(assignments * hidden_size);
  const View shared = encoder_.halves(std::uint64_t{rows} * hidden_size);
  encoder_.grouped_gemm(layer.down_proj, act, false, groups, routed);
  encoder_.gemm(layer.shared_down_proj, shared_act, rows, shared, args::kStoreDefault);
  combine_experts(routed, groups.place_of, weight, shared, shared_gate, rows, hidden);
}

void PrefillEncoder::moe_block(std::size_t layer, std::uint32_t first) {
  const std::uint32_t rows = rows_ - first;
  if (rows == 0) return;
  const DeviceLayerWeights& weights = weights_.layers[layer];
  const auto experts_per_token = narrow(config_.num_experts_per_tok);
  const auto expert_count = narrow(config_.num_experts);
  const View x = normalized(weights.post_attention_layernorm, first);
  const View logits = encoder_.floats(std::uint64_t{rows} * expert_count);
  const View shared_gate = encoder_.floats(rows);
  encoder_.gemm(weights.router, x, rows, logits, args::kStoreFloat);
  encoder_.gemm(weights.shared_expert_gate, x, rows, shared_gate, args::kStoreFloat);
  const std::uint64_t assignments = std::uint64_t{rows} * experts_per_token;
  const View chosen =
      chunk_.host != nullptr ? chunk_.host->chosen().part(0, 4 * assignments) : encoder_.words(assignments);
  const View weight = encoder_.floats(assignments);
  route(logits, rows, chosen, weight);
  experts(weights, x, rows, chosen, weight, shared_gate, rows_from(hidden_, first, rows_));
}

View PrefillEncoder::encode() {
  encoder_.embed(chunk_.ids, weights_.embed_tokens, rows_, hidden_);
  for (std::size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const std::uint32_t first = layer + 1 == weights_.layers.size() ? chunk_.first_needed_row : 0;
    if (weights_.layers[layer].gdn != nullptr) {
      gdn_block(layer, first);
    } else {
      attention_block(layer, first);
    }
    moe_block(layer, first);
  }
  return rows_from(hidden_, chunk_.first_needed_row, rows_);
}

}  // namespace

View encode_prefill(Encoder& encoder, const ModelConfig& config, const DeviceWeights& weights, const StateViews& state,
                    const PrefillChunk& chunk) {
  return PrefillEncoder(encoder, config, weights, state, chunk).encode();
}

void encode_head(Encoder& encoder, const DeviceWeights& weights, const View& hidden_row, const View& logits) {
  encoder.gemv(weights.lm_head, {hidden_row, &weights.norm}, logits, args::kStoreDefault);
}

}  // namespace lily::gpu
