// cpu/activations.h -- the rows that a group of matrices multiplies, in every representation that they read.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "cpu/aligned_buffer.h"
#include "cpu/kernels.h"

namespace lily::cpu {

class Activations {
 public:
  // Rows of float32 at `rows` ([row_count, columns], contiguous) that `matrices` will multiply. Allocates; call from
  // one thread, then quantize each row, then multiply.
  void bind(float* rows, std::int64_t row_count, std::int64_t columns, std::initializer_list<const Matrix*> matrices);

  // Fills the fixed-point representations of one row from its float32 values. Rows may be done in parallel.
  void quantize(const KernelTable& kernels, std::int64_t row);

  [[nodiscard]] std::int64_t row_count() const { return row_count_; }
  // Bytes of the fixed-point representations held now.
  [[nodiscard]] std::size_t bytes() const;
  [[nodiscard]] float* row(std::int64_t index) const { return rows_ + index * columns_; }
  // Sets the activation fields of args for args.weight.
  void describe(MatmulArgs& args) const;

 private:
  struct Representation {
    QuantizedRows view;
    AlignedBuffer<std::int8_t> high;
    AlignedBuffer<std::int8_t> low;
    AlignedBuffer<float> scales;
    AlignedBuffer<float> sums;
  };
  static constexpr std::size_t kMaxRepresentations = 6;  // 2 column orders x 3 group sizes

  void require(const Matrix& matrix);

  float* rows_ = nullptr;
  std::int64_t row_count_ = 0;
  std::int64_t columns_ = 0;
  std::size_t used_ = 0;
  std::array<Representation, kMaxRepresentations> representations_;
};

}  // namespace lily::cpu
