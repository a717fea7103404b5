// gpu/encoder.h -- records kernel launches as metal/lily_args.h describes them; matrix products of every format.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../../metal/lily_args.h"
#include "base/gpu_options.h"
#include "device/device.h"
#include "gpu/pass.h"
#include "gpu/weights.h"

namespace lily::gpu {

[[nodiscard]] constexpr std::uint32_t divide_up(std::uint64_t count, std::uint64_t by) {
  return static_cast<std::uint32_t>((count + by - 1) / by);
}

// A size of the config as the kernels have it.
[[nodiscard]] constexpr std::uint32_t narrow(std::int64_t value) { return static_cast<std::uint32_t>(value); }

[[nodiscard]] constexpr device::FunctionConstant constant(args::FunctionConstantIndex index, std::uint32_t value) {
  return {static_cast<std::uint32_t>(index), static_cast<std::int32_t>(value)};
}

// Rows of the tile of a dense product with this many rows.
[[nodiscard]] std::uint32_t dense_tile_rows(std::uint32_t rows);

// One matrix of a product with a vector, and where its result goes (f32 [rows]).
struct GemvSegment {
  const DeviceMatrix* matrix;
  View out;
};

// A vector that a product reads: bf16, or the f32 residual that is normalised on the way in.
struct GemvInput {
  View x;
  const View* norm_weight = nullptr;  // f32; null: x is bf16
};

[[nodiscard]] constexpr args::VectorType vector_type(const View* norm_weight) {
  return norm_weight != nullptr ? args::kResidualVector : args::kBfloatVector;
}

// Rows grouped by expert: how the grouped GEMM finds them.
struct RowGroups {
  View offsets, block_map, block_count, row_of, place_of;
  std::uint32_t assignments = 0;
  std::uint32_t block_rows = 0;
  std::uint32_t max_blocks = 0;
};

class Encoder {
 public:
  Encoder(device::Device& device, Pass& pass, const Options& options, float eps)
      : device_(device), pass_(pass), options_(options), eps_(eps) {}

  [[nodiscard]] Pass& pass() { return pass_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] float eps() const { return eps_; }
  [[nodiscard]] View floats(std::uint64_t count) { return pass_.scratch(4 * count); }
  [[nodiscard]] View words(std::uint64_t count) { return pass_.scratch(4 * count); }
  [[nodiscard]] View halves(std::uint64_t count) { return pass_.scratch(2 * count); }

  // Query rows that a threadgroup of attention_prefill has.
  [[nodiscard]] std::uint32_t attention_rows() const {
    return device_.has_wide_attention() ? args::kWideAttentionRows : args::kAttentionRows;
  }

  // `args` is bound to the slot behind the last operand's unless `args_slot` says otherwise.
  template <class Args>
  void launch(const char* kernel, std::initializer_list<device::FunctionConstant> constants,
              std::vector<Operand> operands, std::uint32_t args_slot, const Args& args, device::Size3 threadgroups,
              std::uint32_t threads) {
    static_assert(sizeof(Args) <= 256);
    launch_bytes(kernel, {constants.begin(), constants.size()}, std::move(operands), args_slot,
                 std::as_bytes(std::span(&args, 1)), threadgroups, threads);
  }

  void embed(const View& ids, const DeviceMatrix& table, std::uint32_t rows, const View& hidden);
  void rms_norm(const View& x, const View& weight, std::uint32_t rows, std::uint32_t size, const View& out);
  // Segments of different formats become launches of their own.
  void gemv(std::span<const GemvSegment> segments, const GemvInput& input, args::OutputMode mode);
  void gemv(const DeviceMatrix& matrix, const GemvInput& input, const View& out, args::OutputMode mode);
  // out [rows, matrix.rows] = x [rows, columns] W^T.
  void gemm(const DeviceMatrix& matrix, const View& x, std::uint32_t rows, const View& out, args::OutputMode mode);
  // Every place's product with its expert's matrix: out bf16 [assignments, rows]. `gather`: x is by row, not by place.
  void grouped_gemm(const ExpertMatrices& experts, const View& x, bool gather, const RowGroups& groups,
                    const View& out);
  void silu_multiply(const View& gate, const View& up, std::uint32_t count, const View& out);
  void copy_words(const View& from, const View& to);

 private:
  void launch_bytes(const char* kernel, std::span<const device::FunctionConstant> constants,
                    std::vector<Operand> operands, std::uint32_t args_slot, std::span<const std::byte> args,
                    device::Size3 threadgroups, std::uint32_t threads);
  void gemv_of_one_format(std::span<const GemvSegment> segments, const GemvInput& input, args::OutputMode mode);
  [[nodiscard]] DeviceMatrix dequantized(const ExpertMatrices& experts);

  device::Device& device_;
  Pass& pass_;
  const Options& options_;
  float eps_;
};

// Appends the three slots of a matrix, of which the kernel reads `moved` times one matrix (an expert stack: those
// chosen).
void add_matrix(std::vector<Operand>& operands, std::uint32_t slot, const DeviceMatrix& matrix,
                std::uint64_t moved = 1);

}  // namespace lily::gpu
