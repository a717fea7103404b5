// tests/count_matmul.cpp -- one product of a quantized matrix, some times over, for counting its instructions.
//
//   count_matmul ISA BITS INPUTS REPEATS     64 weight rows, 2048 columns, groups of 64
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "cpu/aligned_buffer.h"
#include "cpu/dispatch.h"

namespace {

using namespace lily;
using namespace lily::cpu;

constexpr std::int64_t kRows = 64;
constexpr std::int64_t kColumns = 2048;
constexpr std::int32_t kGroup = 64;
constexpr std::int64_t kGroups = kColumns / kGroup;

void multiply(const KernelTable& kernels, int bits, std::int64_t inputs, int repeats) {
  std::mt19937 random(1);
  std::vector<std::byte> codes(kRows * kColumns * static_cast<std::size_t>(bits) / 8);
  for (std::byte& code : codes) code = static_cast<std::byte>(random());
  std::vector<std::uint16_t> scales(kRows * kGroups);
  for (std::uint16_t& scale : scales) scale = static_cast<std::uint16_t>(0x3e00 + random() % 256);
  const auto* scale_bytes = reinterpret_cast<const std::byte*>(scales.data());
  const Matrix weight{bits == 4 ? MatrixFormat::affine4 : MatrixFormat::affine8,
                      ElementType::bfloat16,
                      kGroup,
                      kRows,
                      kColumns,
                      codes.data(),
                      scale_bytes,
                      scale_bytes};
  const std::int64_t stride = row_stride(kColumns);
  AlignedBuffer<std::int8_t> halves;
  AlignedBuffer<float> floats;
  AlignedBuffer<float> out;
  AlignedBuffer<std::byte> scratch;
  halves.reserve(2 * inputs * stride);
  floats.reserve(2 * inputs * kGroups);
  out.reserve(inputs * kRows);
  scratch.reserve(static_cast<std::int64_t>(kernels.matmul_scratch_bytes(kColumns)));
  const QuantizedRows x{inputs,
                        kColumns,
                        stride,
                        kGroup,
                        bits == 4 ? ColumnOrder::nibble : ColumnOrder::natural,
                        halves.data(),
                        halves.data() + inputs * stride,
                        floats.data(),
                        floats.data() + inputs * kGroups};
  std::vector<float> row(kColumns);
  for (std::int64_t m = 0; m < inputs; ++m) {
    for (float& value : row) value = static_cast<float>(random() % 2001) - 1000.0F;
    kernels.quantize_row(row.data(), kColumns, kGroup, x.order, x.high + m * stride, x.low + m * stride,
                         x.scales + m * kGroups, x.sums + m * kGroups);
  }
  MatmulArgs args;
  args.weight = &weight;
  args.row_end = kRows;
  args.x = &x;
  args.row_count = inputs;
  args.out = out.data();
  args.out_stride = kRows;
  args.scratch = scratch.data();
  for (int i = 0; i < repeats; ++i) kernels.matmul_affine(args);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: count_matmul ISA BITS INPUTS REPEATS\n");
    return 2;
  }
  multiply(select_kernels(argv[1]), std::stoi(argv[2]), std::stol(argv[3]), std::stoi(argv[4]));
  return 0;
}
