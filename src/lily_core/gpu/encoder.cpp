// gpu/encoder.cpp -- launches shared by prefill and decode.
#include "gpu/encoder.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace lily::gpu {
namespace {

constexpr std::uint32_t kGemvSegments = 4;
// Rows that make too few threadgroups to fill a GPU when each has kGemvRows of them.
constexpr std::uint32_t kFewRows = 64 * args::kGemvRows;

const char* gemm_kernel(device::Device& device, std::uint32_t tile_rows) {
  if (tile_rows == 16) return "gemm_affine_m16";
  if (device.has_tensor_gemm()) return tile_rows == 32 ? "gemm_affine_tensor_m32" : "gemm_affine_tensor_m64";
  return tile_rows == 32 ? "gemm_affine_m32" : "gemm_affine_m64";
}

// A normalised residual is staged for all rows of a threadgroup, where there are rows enough.
args::ColumnSharing column_sharing(std::span<const GemvSegment> segments, args::VectorType type) {
  std::uint32_t rows = 0;
  for (const GemvSegment& segment : segments) rows += segment.matrix->rows;
  return type == args::kBfloatVector || rows <= kFewRows ? args::kSharedColumns : args::kWholeRows;
}

// The launch binds what the kernel's signature has, no more and no less.
void check_slots(const device::Pipeline& pipeline, std::span<const Operand> operands, std::uint32_t args_slot) {
  const auto fail = [&](std::uint32_t slot, const char* what) {
    throw Error(ErrorKind::backend,
                "kernel " + pipeline.name() + ", buffer slot " + std::to_string(slot) + ": " + what);
  };
  if (pipeline.slots().empty()) return;
  for (const device::SlotUse& slot : pipeline.slots()) {
    const auto bound = std::find_if(operands.begin(), operands.end(),
                                    [&](const Operand& operand) { return operand.index == slot.index; });
    if (bound == operands.end()) {
      if (slot.index != args_slot) fail(slot.index, "the kernel declares it, the pass does not bind it");
    } else if (slot.written && !bound->writes()) {
      fail(slot.index, "the kernel may write it, the pass binds it for reading");
    }
  }
}

}  // namespace

// A large tile is wasted on few rows; with many rows a small one reads the weights more often.
std::uint32_t dense_tile_rows(std::uint32_t rows) { return rows <= 16 ? 16 : rows <= 96 ? 32 : 64; }

void add_matrix(std::vector<Operand>& operands, std::uint32_t slot, const DeviceMatrix& matrix, std::uint64_t moved) {
  operands.push_back(reads(slot, matrix.codes, moved * matrix.code_bytes()));
  if (matrix.format.bits == 16) {
    operands.push_back(unused(slot + 1, operands.back()));
    operands.push_back(unused(slot + 2, operands.back()));
  } else {
    operands.push_back(reads(slot + 1, matrix.scales, moved * matrix.scale_bytes()));
    operands.push_back(reads(slot + 2, matrix.biases, moved * matrix.scale_bytes()));
  }
}

void Encoder::launch_bytes(const char* kernel, std::span<const device::FunctionConstant> constants,
                           std::vector<Operand> operands, std::uint32_t args_slot, std::span<const std::byte> args,
                           device::Size3 threadgroups, std::uint32_t threads) {
  Operation operation;
  operation.pipeline = &device_.pipeline(kernel, constants);
  check_slots(*operation.pipeline, operands, args_slot);
  operation.operands = std::move(operands);
  operation.bytes_index = args_slot;
  operation.bytes.assign(args.begin(), args.end());
  operation.threadgroups = threadgroups;
  operation.threads_per_threadgroup = threads;
  pass_.add(std::move(operation));
}

void Encoder::embed(const View& ids, const DeviceMatrix& table, std::uint32_t rows, const View& hidden) {
  std::vector<Operand> operands = {reads(0, ids)};
  add_matrix(operands, 1, table);
  for (std::size_t i = 1; i < operands.size(); ++i) {
    operands[i].read_bytes = operands[i].read_bytes / table.rows * rows;
  }
  operands.push_back(writes(4, hidden));
  launch("embed_rows",
         {constant(args::kBitsIndex, table.format.bits), constant(args::kGroupSizeIndex, table.format.group_size)},
         std::move(operands), 5, args::EmbedArgs{.rows = rows, .hidden_size = table.columns, .vocab_size = table.rows},
         {rows, 1, 1}, args::kRowThreads);
}

void Encoder::rms_norm(const View& x, const View& weight, std::uint32_t rows, std::uint32_t size, const View& out) {
  launch("rms_norm_rows", {}, {reads(0, x), reads(1, weight), writes(2, out)}, 3,
         args::NormArgs{.rows = rows, .size = size, .eps = eps_}, {rows, 1, 1}, args::kRowThreads);
}

void Encoder::gemv(const DeviceMatrix& matrix, const GemvInput& input, const View& out, args::OutputMode mode) {
  const GemvSegment segment{&matrix, out};
  gemv_of_one_format(std::span(&segment, 1), input, mode);
}

void Encoder::gemv(std::span<const GemvSegment> segments, const GemvInput& input, args::OutputMode mode) {
  std::vector<GemvSegment> left(segments.begin(), segments.end());
  while (!left.empty()) {
    std::vector<GemvSegment> together;
    std::vector<GemvSegment> later;
    for (const GemvSegment& segment : left) {
      const bool fits = segment.matrix->format == left.front().matrix->format && together.size() < kGemvSegments;
      (fits ? together : later).push_back(segment);
    }
    gemv_of_one_format(together, input, mode);
    left = std::move(later);
  }
}

void Encoder::gemv_of_one_format(std::span<const GemvSegment> segments, const GemvInput& input, args::OutputMode mode) {
  const DeviceMatrix& first = *segments.front().matrix;
  args::GemvArgs arguments{
      .segments = static_cast<std::uint32_t>(segments.size()), .columns = first.columns, .eps = eps_, .rows = {}};
  std::vector<Operand> operands;
  const args::VectorType type = vector_type(input.norm_weight);
  const args::ColumnSharing sharing = column_sharing(segments, type);
  const std::uint32_t threadgroup_rows = sharing == args::kSharedColumns ? args::kSplitRows : args::kGemvRows;
  std::uint32_t threadgroups = 0;
  for (std::uint32_t s = 0; s < kGemvSegments; ++s) {
    if (s < segments.size()) {
      add_matrix(operands, 3 * s, *segments[s].matrix);
      arguments.rows[s] = segments[s].matrix->rows;
      threadgroups += divide_up(segments[s].matrix->rows, threadgroup_rows);
    } else {
      for (std::uint32_t i = 0; i < 3; ++i) operands.push_back(unused(3 * s + i, operands[i]));
    }
  }
  const Operand x = reads(12, input.x);
  operands.push_back(x);
  operands.push_back(input.norm_weight != nullptr ? reads(13, *input.norm_weight) : unused(13, x));
  for (std::uint32_t s = 0; s < kGemvSegments; ++s) {
    if (s >= segments.size()) {
      operands.push_back(unused(14 + s, operands[14]));
    } else {
      operands.push_back(mode == args::kAccumulateFloat ? updates(14 + s, segments[s].out)
                                                        : writes(14 + s, segments[s].out));
    }
  }
  launch("gemv_segments",
         {constant(args::kBitsIndex, first.format.bits), constant(args::kGroupSizeIndex, first.format.group_size),
          constant(args::kVectorTypeIndex, type), constant(args::kColumnSharingIndex, sharing),
          constant(args::kAccumulateIndex, static_cast<std::uint32_t>(mode))},
         std::move(operands), 18, arguments, {threadgroups, 1, 1}, args::kGemvThreads);
}

// P1 off: the matrices of all experts (or the one) as bf16 in scratch memory.
DeviceMatrix Encoder::dequantized(const ExpertMatrices& experts) {
  const DeviceMatrix& matrix = experts.matrix;
  DeviceMatrix result;
  result.rows = matrix.rows;
  result.columns = matrix.columns;
  const std::uint64_t one = std::uint64_t{matrix.rows} * matrix.columns * 2;
  result.codes = pass_.scratch(one * experts.experts);
  result.scales = result.biases = result.codes;
  // One launch for all where they follow each other without a gap.
  const std::uint32_t launches = experts.contiguous() ? 1 : experts.experts;
  const std::uint32_t together = experts.experts / launches;
  for (std::uint32_t i = 0; i < launches; ++i) {
    DeviceMatrix source = matrix;
    source.rows = matrix.rows * together;
    source.codes = matrix.codes.part(std::uint64_t{i} * experts.expert_words * 4, source.code_bytes());
    source.scales = matrix.scales.part(std::uint64_t{i} * experts.expert_scales * 2, source.scale_bytes());
    source.biases = matrix.biases.part(std::uint64_t{i} * experts.expert_scales * 2, source.scale_bytes());
    std::vector<Operand> operands;
    add_matrix(operands, 0, source);
    operands.push_back(writes(3, result.codes.part(i * one, one * together)));
    launch("dequantize_matrix",
           {constant(args::kBitsIndex, source.format.bits), constant(args::kGroupSizeIndex, source.format.group_size)},
           std::move(operands), 4,
           args::GemmArgs{.rows = 0,
                          .rows_out = source.rows,
                          .columns = source.columns,
                          .gather_rows = 0,
                          .expert_words = 0,
                          .expert_scales = 0,
                          .out_stride = source.columns},
           {source.rows, divide_up(source.columns, args::kElementThreads), 1}, args::kElementThreads);
  }
  return result;
}

void Encoder::gemm(const DeviceMatrix& matrix, const View& x, std::uint32_t rows, const View& out,
                   args::OutputMode mode) {
  if (!options_.dequantize_in_gemm && matrix.format.bits != 16) {
    const ExpertMatrices one{.matrix = matrix,
                             .experts = 1,
                             .expert_words = static_cast<std::uint32_t>(matrix.code_bytes() / 4),
                             .expert_scales = static_cast<std::uint32_t>(matrix.scale_bytes() / 2)};
    gemm(dequantized(one), x, rows, out, mode);
    return;
  }
  const std::uint32_t tile_rows = dense_tile_rows(rows);
  std::vector<Operand> operands;
  add_matrix(operands, 0, matrix);
  const Operand x_operand = reads(3, x);
  operands.push_back(x_operand);
  operands.push_back(mode == args::kAccumulateFloat ? updates(4, out) : writes(4, out));
  for (std::uint32_t slot = 6; slot < 10; ++slot) operands.push_back(unused(slot, x_operand));
  launch(gemm_kernel(device_, tile_rows),
         {constant(args::kBitsIndex, matrix.format.bits), constant(args::kGroupSizeIndex, matrix.format.group_size),
          constant(args::kGroupedIndex, 0), constant(args::kAccumulateIndex, static_cast<std::uint32_t>(mode))},
         std::move(operands), 5,
         args::GemmArgs{.rows = rows,
                        .rows_out = matrix.rows,
                        .columns = matrix.columns,
                        .gather_rows = 0,
                        .expert_words = 0,
                        .expert_scales = 0,
                        .out_stride = matrix.rows},
         {divide_up(matrix.rows, args::kTileColumns), divide_up(rows, tile_rows), 1}, args::kTileThreads);
}

void Encoder::grouped_gemm(const ExpertMatrices& experts, const View& x, bool gather, const RowGroups& groups,
                           const View& out) {
  if (!options_.dequantize_in_gemm && experts.matrix.format.bits != 16) {
    ExpertMatrices plain;
    plain.matrix = dequantized(experts);
    plain.experts = experts.experts;
    plain.expert_words = static_cast<std::uint32_t>(plain.matrix.code_bytes() / 4);
    grouped_gemm(plain, x, gather, groups, out);
    return;
  }
  const DeviceMatrix& matrix = experts.matrix;
  std::vector<Operand> operands;
  add_matrix(operands, 0, matrix, std::min(experts.experts, groups.assignments));
  operands.push_back(reads(3, x));
  operands.push_back(writes(4, out));
  operands.push_back(reads(6, groups.offsets));
  operands.push_back(reads(7, groups.block_map));
  operands.push_back(reads(8, groups.block_count));
  operands.push_back(reads(9, groups.row_of));
  launch(gemm_kernel(device_, groups.block_rows),
         {constant(args::kBitsIndex, matrix.format.bits), constant(args::kGroupSizeIndex, matrix.format.group_size),
          constant(args::kGroupedIndex, 1), constant(args::kAccumulateIndex, args::kStoreDefault)},
         std::move(operands), 5,
         args::GemmArgs{.rows = groups.assignments,
                        .rows_out = matrix.rows,
                        .columns = matrix.columns,
                        .gather_rows = gather ? 1U : 0U,
                        .expert_words = experts.expert_words,
                        .expert_scales = experts.expert_scales,
                        .out_stride = matrix.rows},
         {divide_up(matrix.rows, args::kTileColumns), groups.max_blocks, 1}, args::kTileThreads);
}

void Encoder::silu_multiply(const View& gate, const View& up, std::uint32_t count, const View& out) {
  launch("silu_multiply_rows", {}, {reads(0, gate), reads(1, up), writes(2, out)}, 3, args::ElementArgs{.count = count},
         {divide_up(count, 4 * args::kElementThreads), 1, 1}, args::kElementThreads);
}

void Encoder::copy_words(const View& from, const View& to) {
  const auto count = static_cast<std::uint32_t>(from.size / 4);
  launch("copy_words", {}, {reads(0, from), writes(1, to)}, 2, args::ElementArgs{.count = count},
         {divide_up(count, 4 * args::kElementThreads), 1, 1}, args::kElementThreads);
}

}  // namespace lily::gpu
