// weights/sources.h -- where each weight lies in the checkpoint's files, as the checkpoint reader resolved it.
//
// The reader (python/lily/checkpoint/) parses and validates JSON and safetensors headers; the core only maps files
// and takes views. Names are canonical, whatever prefix and fusion the checkpoint used: "layers.3.self_attn.q_proj".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "weights/file_identity.h"
#include "weights/matrix.h"

namespace lily {

// Bytes of one tensor: the first matrix of a part begins at `offset` of files[file], the next ones `stride` bytes on.
struct TensorSlice {
  std::int32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
};

// `count` consecutive matrices (experts) of the same shape; a dense matrix is one part of count 1.
struct MatrixPart {
  std::int64_t count = 1;
  TensorSlice weight;
  TensorSlice scales;  // affine only
  TensorSlice biases;  // affine only
};

struct MatrixSource {
  std::string name;
  MatrixFormat format = MatrixFormat::plain;
  ElementType element_type = ElementType::float32;
  std::int32_t group_size = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<MatrixPart> parts;  // counts sum to the number of experts, or to 1
};

// A small tensor that is converted to float32 when loading.
struct VectorSource {
  std::string name;
  ElementType element_type = ElementType::float32;
  std::int32_t file = 0;
  std::uint64_t offset = 0;
  std::int64_t size = 0;  // elements
  float add = 0.0F;       // added to every element: 1 for the zero-centred norms of the vendor's checkpoints
};

struct CheckpointSource {
  std::vector<std::string> files;        // absolute paths
  std::vector<FileIdentity> identities;  // of the files, as the reader saw them
  std::vector<MatrixSource> matrices;
  std::vector<VectorSource> vectors;
};

}  // namespace lily
