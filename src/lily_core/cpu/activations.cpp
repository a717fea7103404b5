// cpu/activations.cpp -- chooses and fills the fixed-point representations of activation rows.
#include "cpu/activations.h"

namespace lily::cpu {
namespace {

ColumnOrder column_order(const Matrix& matrix) {
  return matrix.format == MatrixFormat::affine4 ? ColumnOrder::nibble : ColumnOrder::natural;
}

bool serves(const QuantizedRows& view, const Matrix& matrix) {
  return view.group_size == matrix.group_size && view.order == column_order(matrix);
}

}  // namespace

void Activations::bind(float* rows, std::int64_t row_count, std::int64_t columns,
                       std::initializer_list<const Matrix*> matrices) {
  rows_ = rows;
  row_count_ = row_count;
  columns_ = columns;
  used_ = 0;
  for (const Matrix* matrix : matrices) {
    if (matrix->is_affine()) require(*matrix);
  }
}

void Activations::require(const Matrix& matrix) {
  for (std::size_t i = 0; i < used_; ++i) {
    if (serves(representations_[i].view, matrix)) return;
  }
  Representation& added = representations_[used_++];
  const std::int64_t groups = columns_ / matrix.group_size;
  added.high.reserve(row_count_ * row_stride(columns_));
  added.low.reserve(row_count_ * row_stride(columns_));
  added.scales.reserve(row_count_ * groups);
  added.sums.reserve(row_count_ * groups);
  added.view = {.rows = row_count_,
                .columns = columns_,
                .stride = row_stride(columns_),
                .group_size = matrix.group_size,
                .order = column_order(matrix),
                .high = added.high.data(),
                .low = added.low.data(),
                .scales = added.scales.data(),
                .sums = added.sums.data()};
}

void Activations::quantize(const KernelTable& kernels, std::int64_t row) {
  for (std::size_t i = 0; i < used_; ++i) {
    const QuantizedRows& view = representations_[i].view;
    kernels.quantize_row(rows_ + row * columns_, columns_, view.group_size, view.order, view.high + row * view.stride,
                         view.low + row * view.stride, view.scales + row * view.groups(),
                         view.sums + row * view.groups());
  }
}

std::size_t Activations::bytes() const {
  std::size_t total = 0;
  for (const Representation& each : representations_) {
    total += each.high.bytes() + each.low.bytes() + each.scales.bytes() + each.sums.bytes();
  }
  return total;
}

void Activations::describe(MatmulArgs& args) const {
  args.x = nullptr;
  args.x_plain = rows_;
  args.x_stride = columns_;
  for (std::size_t i = 0; i < used_ && args.weight->is_affine(); ++i) {
    if (serves(representations_[i].view, *args.weight)) args.x = &representations_[i].view;
  }
}

}  // namespace lily::cpu
