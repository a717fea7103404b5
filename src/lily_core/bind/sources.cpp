// bind/sources.cpp -- binds weights/sources.h.
#include "weights/sources.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bind/bind.h"
#include "weights/mapped_file_faults.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lily::bind {

void bind_sources(nb::module_& module) {
  nb::enum_<ElementType>(module, "ElementType")
      .value("bfloat16", ElementType::bfloat16)
      .value("float16", ElementType::float16)
      .value("float32", ElementType::float32);
  nb::enum_<MatrixFormat>(module, "MatrixFormat")
      .value("affine4", MatrixFormat::affine4)
      .value("affine8", MatrixFormat::affine8)
      .value("plain", MatrixFormat::plain);
  nb::class_<TensorSlice>(module, "TensorSlice", "Bytes of a tensor inside a file.")
      .def(
          "__init__",
          [](TensorSlice* self, std::int32_t file, std::uint64_t offset, std::uint64_t stride) {
            new (self) TensorSlice{file, offset, stride};
          },
          "file"_a, "offset"_a, "stride"_a);
  nb::class_<MatrixPart>(module, "MatrixPart", "Consecutive matrices of the same shape.")
      .def(
          "__init__",
          [](MatrixPart* self, std::int64_t count, const TensorSlice& weight, const TensorSlice& scales,
             const TensorSlice& biases) { new (self) MatrixPart{count, weight, scales, biases}; },
          "count"_a, "weight"_a, "scales"_a, "biases"_a);
  nb::class_<MatrixSource>(module, "MatrixSource", "Where a weight matrix lies, and its format.")
      .def(
          "__init__",
          [](MatrixSource* self, std::string name, MatrixFormat format, ElementType element_type,
             std::int32_t group_size, std::int64_t rows, std::int64_t columns, std::vector<MatrixPart> parts) {
            new (self) MatrixSource{std::move(name), format, element_type, group_size, rows, columns, std::move(parts)};
          },
          "name"_a, "format"_a, "element_type"_a, "group_size"_a, "rows"_a, "columns"_a, "parts"_a);
  nb::class_<VectorSource>(module, "VectorSource", "Where a small tensor lies.")
      .def(
          "__init__",
          [](VectorSource* self, std::string name, ElementType element_type, std::int32_t file, std::uint64_t offset,
             std::int64_t size,
             float add) { new (self) VectorSource{std::move(name), element_type, file, offset, size, add}; },
          "name"_a, "element_type"_a, "file"_a, "offset"_a, "size"_a, "add"_a);
  nb::class_<FileIdentity>(module, "FileIdentity", "Identifies a file and its content.")
      .def(
          "__init__",
          [](FileIdentity* self, std::uint64_t device, std::uint64_t inode, std::uint64_t size,
             std::int64_t modified_ns,
             std::int64_t changed_ns) { new (self) FileIdentity{device, inode, size, modified_ns, changed_ns}; },
          "device"_a, "inode"_a, "size"_a, "modified_ns"_a, "changed_ns"_a);
  // Paths come as bytes: file names need not be valid text.
  nb::class_<CheckpointSource>(module, "CheckpointSource", "Files of a checkpoint and every weight in them.")
      .def(
          "__init__",
          [](CheckpointSource* self, const std::vector<nb::bytes>& files, std::vector<FileIdentity> identities,
             std::vector<MatrixSource> matrices, std::vector<VectorSource> vectors) {
            std::vector<std::string> paths;
            paths.reserve(files.size());
            for (const nb::bytes& file : files) paths.emplace_back(file.c_str(), file.size());
            new (self)
                CheckpointSource{std::move(paths), std::move(identities), std::move(matrices), std::move(vectors)};
          },
          "files"_a, "identities"_a, "matrices"_a, "vectors"_a);
  module.def("report_mapping_faults", &report_mapping_faults,
             "Makes SIGBUS name the truncated mapped file; False if the signal already has a handler.");
}

}  // namespace lily::bind
