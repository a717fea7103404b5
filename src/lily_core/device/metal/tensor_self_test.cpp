// device/metal/tensor_self_test.cpp -- random products, their reference in double precision, and the comparison.
#include "device/metal/tensor_self_test.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "../../metal/lily_args.h"
#include "base/error.h"

namespace lily::device::metal {
namespace {

constexpr std::uint32_t kGroupSize = 64;

struct Case {
  std::uint32_t tile_rows;
  std::uint32_t bits;
  std::uint32_t rows_out;
  std::uint32_t columns;
  std::vector<std::uint32_t> rows;  // of each expert; one: dense
  [[nodiscard]] bool grouped() const { return rows.size() > 1; }
};

float bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bfloat(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

class Product {
 public:
  explicit Product(const Case& shape) : shape_(shape), experts_(static_cast<std::uint32_t>(shape.rows.size())) {
    for (const std::uint32_t count : shape.rows) {
      for (std::uint32_t block = 0; block * shape.tile_rows < count; ++block) {
        block_map_.push_back(static_cast<std::int32_t>(offsets_.size() - 1));
        block_map_.push_back(static_cast<std::int32_t>(block * shape.tile_rows));
      }
      offsets_.push_back(offsets_.back() + count);
    }
    fill();
  }

  // `kernel` on the device: f32 [rows, rows_out].
  std::vector<float> run(Device& device, const std::string& kernel) const;
  // What is wrong with `result`, empty for nothing.
  [[nodiscard]] std::string compare(std::span<const float> result, const std::string& kernel) const;

 private:
  [[nodiscard]] std::uint32_t rows() const { return offsets_.back(); }
  [[nodiscard]] std::uint32_t blocks() const { return static_cast<std::uint32_t>(block_map_.size() / 2); }
  [[nodiscard]] std::uint64_t matrix_values() const { return std::uint64_t{shape_.rows_out} * shape_.columns; }
  [[nodiscard]] float weight(std::uint32_t expert, std::uint32_t row, std::uint32_t column) const;
  void fill();

  Case shape_;
  std::uint32_t experts_;
  std::vector<std::uint32_t> codes_;
  std::vector<std::uint16_t> scales_, biases_, x_;
  std::vector<std::uint32_t> offsets_ = {0}, row_of_;
  std::vector<std::int32_t> block_map_;
};

void Product::fill() {
  std::mt19937 random(shape_.bits * 1000 + shape_.tile_rows + experts_);
  // The standard's distributions differ between libraries; this does not.
  const auto uniform = [&] { return static_cast<float>(random() >> 8) / static_cast<float>(1U << 23) - 1.0F; };
  const std::uint64_t values = matrix_values() * experts_;
  codes_.resize(values * shape_.bits / 32);
  if (shape_.bits == 16) {
    for (std::uint32_t& pair : codes_) pair = to_bfloat(uniform()) | (std::uint32_t{to_bfloat(uniform())} << 16);
  } else {
    for (std::uint32_t& word : codes_) word = random();
    const float step = 2.0F / static_cast<float>((1U << shape_.bits) - 1);
    for (std::uint64_t i = 0; i < values / kGroupSize; ++i) {
      scales_.push_back(to_bfloat(step * (1.0F + 0.5F * uniform())));
      biases_.push_back(to_bfloat(-1.0F + 0.25F * uniform()));
    }
  }
  for (std::uint64_t i = 0; i < std::uint64_t{rows()} * shape_.columns; ++i) x_.push_back(to_bfloat(uniform()));
  for (std::uint32_t i = 0; i < rows(); ++i) row_of_.push_back((7 * i + 3) % rows());
}

float Product::weight(std::uint32_t expert, std::uint32_t row, std::uint32_t column) const {
  const std::uint64_t at = expert * matrix_values() + std::uint64_t{row} * shape_.columns + column;
  const std::uint64_t bit = at * shape_.bits;
  const std::uint32_t code = (codes_[bit / 32] >> (bit % 32)) & ((1U << shape_.bits) - 1);
  if (shape_.bits == 16) return bfloat(static_cast<std::uint16_t>(code));
  const float scaled = bfloat(scales_[at / kGroupSize]) * static_cast<float>(code) + bfloat(biases_[at / kGroupSize]);
  return bfloat(to_bfloat(scaled));
}

template <class T>
std::shared_ptr<Buffer> upload(Device& device, const std::vector<T>& values, const char* label) {
  const auto bytes = std::as_bytes(std::span(values));
  const auto buffer = device.allocate(std::max<std::uint64_t>(bytes.size(), 16), BufferStorage::shared, label);
  if (!bytes.empty()) buffer->write(0, bytes);
  return buffer;
}

std::vector<float> Product::run(Device& device, const std::string& kernel) const {
  const bool grouped = shape_.grouped();
  const std::vector<std::uint32_t> count = {blocks()};
  const auto out = device.allocate(4ULL * rows() * shape_.rows_out, BufferStorage::shared, "self-test result");
  std::vector<std::shared_ptr<Buffer>> buffers = {upload(device, codes_, "codes"), nullptr, nullptr,
                                                  upload(device, x_, "x"), out};
  buffers[1] = shape_.bits == 16 ? buffers[0] : upload(device, scales_, "scales");
  buffers[2] = shape_.bits == 16 ? buffers[0] : upload(device, biases_, "biases");
  const std::vector<std::shared_ptr<Buffer>> groups =
      grouped
          ? std::vector<std::shared_ptr<Buffer>>{upload(device, offsets_, "offsets"), upload(device, block_map_, "map"),
                                                 upload(device, count, "count"), upload(device, row_of_, "rows")}
          : std::vector<std::shared_ptr<Buffer>>(4, buffers[3]);
  const auto value_of = [](std::uint32_t value) { return static_cast<std::int32_t>(value); };
  const std::vector<FunctionConstant> constants = {{args::kBitsIndex, value_of(shape_.bits)},
                                                   {args::kGroupSizeIndex, value_of(kGroupSize)},
                                                   {args::kGroupedIndex, grouped ? 1 : 0},
                                                   {args::kAccumulateIndex, args::kStoreFloat}};
  Dispatch dispatch;
  dispatch.pipeline = &device.pipeline(kernel, constants);
  const auto bind = [&](std::uint32_t index, const std::shared_ptr<Buffer>& buffer) {
    dispatch.buffers.push_back(
        {.index = index, .buffer = buffer.get(), .offset = 0, .size = buffer->size(), .written = index == 4});
  };
  for (std::uint32_t i = 0; i < 5; ++i) bind(i, buffers[i]);
  for (std::uint32_t i = 0; i < 4; ++i) bind(6 + i, groups[i]);
  const args::GemmArgs arguments{.rows = rows(),
                                 .rows_out = shape_.rows_out,
                                 .columns = shape_.columns,
                                 .gather_rows = grouped ? 1U : 0U,
                                 .expert_words = static_cast<std::uint32_t>(matrix_values() * shape_.bits / 32),
                                 .expert_scales = static_cast<std::uint32_t>(matrix_values() / kGroupSize),
                                 .out_stride = shape_.rows_out};
  const auto bytes = std::as_bytes(std::span(&arguments, 1));
  dispatch.bytes_index = 5;
  dispatch.bytes.assign(bytes.begin(), bytes.end());
  dispatch.threadgroups = {(shape_.rows_out + args::kTileColumns - 1) / args::kTileColumns, blocks(), 1};
  dispatch.threads_per_threadgroup = args::kTileThreads;
  const std::vector<Stage> stages = {{{dispatch}}};
  const PassResult result = device.submit(stages)->wait();
  if (!result.error.empty()) throw Error(result.kind, kernel + ": " + result.error);
  std::vector<float> values(std::uint64_t{rows()} * shape_.rows_out);
  out->read(0, std::as_writable_bytes(std::span(values)));
  return values;
}

std::string Product::compare(std::span<const float> result, const std::string& kernel) const {
  for (std::uint32_t expert = 0; expert < experts_; ++expert) {
    for (std::uint32_t place = offsets_[expert]; place < offsets_[expert + 1]; ++place) {
      const std::uint32_t row = shape_.grouped() ? row_of_[place] : place;
      for (std::uint32_t n = 0; n < shape_.rows_out; ++n) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (std::uint32_t k = 0; k < shape_.columns; ++k) {
          const double term = static_cast<double>(bfloat(x_[std::uint64_t{row} * shape_.columns + k])) *
                              static_cast<double>(weight(expert, n, k));
          sum += term;
          magnitude += std::abs(term);
        }
        // Products of bf16 values are exact in float; what is left is a rounding, half of 2^-23, for each addition.
        const double allowed = static_cast<double>(shape_.columns) * 0x1p-24 * magnitude;
        const double found = static_cast<double>(result[std::uint64_t{place} * shape_.rows_out + n]);
        if (!(std::abs(found - sum) <= allowed)) {
          return kernel + " (" + std::to_string(shape_.bits) + " bits, row " + std::to_string(place) + ", column " +
                 std::to_string(n) + "): " + std::to_string(found) + " instead of " + std::to_string(sum);
        }
      }
    }
  }
  return "";
}

}  // namespace

std::string tensor_self_test(Device& device) {
  const std::vector<Case> cases = {{32, 4, 72, 192, {41}},
                                   {64, 8, 136, 128, {75}},
                                   {32, 16, 40, 72, {33}},
                                   {32, 4, 72, 128, {13, 0, 35, 1}},
                                   {64, 4, 64, 192, {9, 70}}};
  for (const Case& shape : cases) {
    const Product product(shape);
    const bool small = shape.tile_rows == 32;
    for (const std::string kernel :
         {small ? "gemm_affine_m32" : "gemm_affine_m64", small ? "gemm_affine_tensor_m32" : "gemm_affine_tensor_m64"}) {
      const std::string difference = product.compare(product.run(device, kernel), kernel);
      if (!difference.empty()) return difference;
    }
  }
  return "";
}

}  // namespace lily::device::metal
