// bind/kernels.cpp -- single kernels on NumPy arrays, for the tests and for verifying a user's machine.
#include "cpu/kernels.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "base/error.h"
#include "bind/bind.h"
#include "cpu/activations.h"
#include "cpu/dispatch.h"
#include "cpu/read_bandwidth.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using RowsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const std::byte* as_bytes(const Bytes& array) { return reinterpret_cast<const std::byte*>(array.data()); }

void check_size(const Bytes& array, std::int64_t bytes, const char* name) {
  if (static_cast<std::int64_t>(array.size()) != bytes) {
    throw Error(ErrorKind::invalid_argument, std::string(name) + " has " + std::to_string(array.size()) +
                                                 " bytes, expected " + std::to_string(bytes));
  }
}

// out = x W^T for one matrix given as raw bytes, with the kernels of one instruction set.
void multiply(const std::string& isa, MatrixFormat format, ElementType element_type, std::int32_t group_size,
              const Bytes& weight, const Bytes& scales, const Bytes& biases, const Rows& x, const RowsOut& out) {
  const cpu::KernelTable& kernels = cpu::select_kernels(isa);
  Matrix matrix{.format = format,
                .element_type = element_type,
                .group_size = group_size,
                .rows = static_cast<std::int64_t>(out.shape(1)),
                .columns = static_cast<std::int64_t>(x.shape(1)),
                .weight = as_bytes(weight)};
  if (x.shape(0) != out.shape(0)) throw Error(ErrorKind::invalid_argument, "x and out differ in rows");
  check_size(weight, matrix.rows * matrix.row_bytes(), "weight");
  if (matrix.is_affine()) {
    check_size(scales, matrix.rows * matrix.scale_row_bytes(), "scales");
    check_size(biases, matrix.rows * matrix.scale_row_bytes(), "biases");
    matrix.scales = as_bytes(scales);
    matrix.biases = as_bytes(biases);
  }
  const auto count = static_cast<std::int64_t>(x.shape(0));
  cpu::Activations activations;
  cpu::AlignedBuffer<float> rows(count * matrix.columns);
  std::copy(x.data(), x.data() + x.size(), rows.data());
  activations.bind(rows.data(), count, matrix.columns, {&matrix});
  for (std::int64_t row = 0; row < count; ++row) activations.quantize(kernels, row);
  cpu::AlignedBuffer<std::byte> scratch(static_cast<std::int64_t>(kernels.matmul_scratch_bytes(matrix.columns)));
  cpu::MatmulArgs args{.weight = &matrix,
                       .row_begin = 0,
                       .row_end = matrix.rows,
                       .row_count = count,
                       .out = out.data(),
                       .out_stride = matrix.rows,
                       .scratch = scratch.data()};
  activations.describe(args);
  (matrix.is_affine() ? kernels.matmul_affine : kernels.matmul_plain)(args);
}

}  // namespace

void bind_kernels(nb::module_& module) {
  nb::module_ kernels = module.def_submodule("kernels", "Single kernels, for tests, verification and benchmarks.");
  kernels.def("multiply", &multiply, "isa"_a, "format"_a, "element_type"_a, "group_size"_a, "weight"_a, "scales"_a,
              "biases"_a, "x"_a, "out"_a);
  kernels.def("time_reads", &cpu::time_reads, "threads"_a, "bytes"_a, "passes"_a,
              nb::call_guard<nb::gil_scoped_release>(),
              "Seconds that the threads take to read so many bytes each, for each pass.");
}

}  // namespace lily::bind
