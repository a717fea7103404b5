// gpu/weight_placer.cpp -- alignment rules, copies and conversions of weights.
#include "gpu/weight_placer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace lily::gpu {
namespace {

constexpr std::uint64_t kCodeAlignment = 16;
constexpr std::uint64_t kScaleAlignment = 4;
constexpr std::uint64_t kRoomAlignment = 256;
// An arena is one buffer: small enough for any device's limit on a buffer, large enough for few buffers.
constexpr std::uint64_t kArenaBytes = std::uint64_t{1} << 30;

[[noreturn]] void unsupported(const std::string& name, const std::string& what) {
  throw Error(ErrorKind::config,
              "weight " + name + " " + what + ", which the GPU engine cannot use; load the model with backend=\"cpu\"");
}

MatrixFormatKey format_of(const std::string& name, const Matrix& matrix) {
  if (matrix.is_affine()) {
    return {static_cast<std::uint32_t>(matrix.bits()), static_cast<std::uint32_t>(matrix.group_size)};
  }
  if (matrix.element_type != ElementType::bfloat16) {
    unsupported(name, matrix.element_type == ElementType::float16 ? "is plain float16" : "is plain float32");
  }
  return {16, 64};
}

// The distance between neighbours, or 0 when it varies or goes backwards.
std::uint64_t common_stride(const std::vector<const std::byte*>& blocks, std::uint64_t bytes) {
  if (blocks.size() == 1) return bytes;
  const auto stride = blocks[1] - blocks[0];
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if (blocks[i] - blocks[i - 1] != stride) return 0;
  }
  return stride < static_cast<std::ptrdiff_t>(bytes) ? 0 : static_cast<std::uint64_t>(stride);
}

void convert_scales(const std::byte* from, std::uint64_t count, ElementType type, std::byte* to) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = float_to_bfloat16(load_element(from, type, static_cast<std::int64_t>(i)));
    std::memcpy(to + 2 * i, &bits, sizeof(bits));
  }
}

std::vector<const std::byte*> pointers(const std::vector<Matrix>& matrices, const std::byte* Matrix::* field) {
  std::vector<const std::byte*> result;
  result.reserve(matrices.size());
  for (const Matrix& matrix : matrices) result.push_back(matrix.*field);
  return result;
}

}  // namespace

WeightPlacer::WeightPlacer(device::Device& device, std::span<const HostRegion> regions, const CopyProgress& progress)
    : device_(device),
      progress_(progress),
      regions_(regions.begin(), regions.end()),
      region_is_used_(regions.size()),
      region_buffers_(regions.size()) {}

View WeightPlacer::make_room(std::uint64_t bytes, bool is_copy) {
  const std::uint64_t rounded = (bytes + kRoomAlignment - 1) / kRoomAlignment * kRoomAlignment;
  if (arena_sizes_.empty()) arena_sizes_.push_back(0);
  if (used_ > 0 && used_ + rounded > kArenaBytes) {
    ++arena_;
    used_ = 0;
    if (!placing_) arena_sizes_.push_back(0);
  }
  View room;
  if (placing_) {
    room = {.buffer = arenas_[arena_].get(),
            .scratch = kNoScratch,
            .offset = used_,
            .size = bytes,
            .kind = MemoryKind::weights};
  } else if (is_copy) {
    ++copied_.tensors;
    copied_.bytes += bytes;
  }
  used_ += rounded;
  if (!placing_) arena_sizes_[arena_] = used_;
  return room;
}

void WeightPlacer::begin_placing() {
  for (std::size_t i = 0; i < arena_sizes_.size(); ++i) {
    arenas_.push_back(device_.allocate(std::max<std::uint64_t>(arena_sizes_[i], 1), device::BufferStorage::private_,
                                       "weights " + std::to_string(i)));
  }
  placing_ = true;
  arena_ = 0;
  used_ = 0;
}

std::vector<std::shared_ptr<device::Buffer>> WeightPlacer::take_buffers() {
  std::vector<std::shared_ptr<device::Buffer>> all = std::move(arenas_);
  for (auto& buffer : region_buffers_) {
    if (buffer != nullptr) all.push_back(std::move(buffer));
  }
  return all;
}

View WeightPlacer::values(std::span<const std::byte> bytes) {
  const View room = make_room(bytes.size(), false);
  if (placing_) room.buffer->write(room.offset, bytes);  // NOLINT: it places into a buffer
  return room;
}

std::optional<WeightPlacer::Blocks> WeightPlacer::find_in_place(const std::vector<const std::byte*>& blocks,
                                                                std::uint64_t bytes, std::uint64_t alignment) {
  const std::uint64_t stride = common_stride(blocks, bytes);
  const std::uint64_t span = stride * (blocks.size() - 1) + bytes;
  for (std::size_t i = 0; i < regions_.size() && stride > 0; ++i) {
    const HostRegion& region = regions_[i];
    const auto offset = static_cast<std::uint64_t>(blocks[0] - region.data);
    if (blocks[0] < region.data || offset > region.size || span > region.size - offset) continue;
    if (offset % alignment != 0 || (blocks.size() > 1 && stride % alignment != 0)) break;
    region_is_used_[i] = true;
    if (placing_ && region_buffers_[i] == nullptr) region_buffers_[i] = wrap_region(region);
    return Blocks{{.buffer = region_buffers_[i].get(),
                   .scratch = kNoScratch,
                   .offset = offset,
                   .size = span,
                   .kind = MemoryKind::weights},
                  stride};
  }
  return std::nullopt;
}

std::shared_ptr<device::Buffer> WeightPlacer::wrap_region(const HostRegion& region) {
  std::uint64_t total = 0;  // of all regions that are used
  for (std::size_t i = 0; i < regions_.size(); ++i) total += region_is_used_[i] ? regions_[i].size : 0;
  CopyProgress progress;
  if (progress_) progress = [&](std::uint64_t done, std::uint64_t /*size*/) { progress_(wrapped_ + done, total); };
  std::shared_ptr<device::Buffer> buffer = device_.wrap(region.data, region.size, region.label, progress);
  wrapped_ += region.size;
  return buffer;
}

WeightPlacer::Blocks WeightPlacer::copy_blocks(const std::vector<const std::byte*>& blocks, std::uint64_t bytes,
                                               std::uint64_t alignment) {
  const std::uint64_t packed = (bytes + alignment - 1) / alignment * alignment;
  const View room = make_room(packed * blocks.size(), true);
  if (placing_) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      room.buffer->write(room.offset + i * packed, std::span(blocks[i], bytes));  // NOLINT: it places into a buffer
    }
  }
  return {room, packed};
}

WeightPlacer::Blocks WeightPlacer::copy_scales(const std::vector<const std::byte*>& blocks, std::uint64_t count,
                                               ElementType type) {
  if (type == ElementType::bfloat16) return copy_blocks(blocks, count * 2, kScaleAlignment);
  const std::uint64_t packed = (count * 2 + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
  const View room = make_room(packed * blocks.size(), true);
  if (placing_) {
    std::vector<std::byte> converted(packed * blocks.size());
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      convert_scales(blocks[i], count, type, converted.data() + i * packed);
    }
    room.buffer->write(room.offset, converted);  // NOLINT: it places into a buffer
  }
  return {room, packed};
}

// Scales and biases of several matrices have one distance between neighbours, so both stay or both are copied.
void WeightPlacer::place_scales(const std::vector<Matrix>& matrices, ExpertMatrices& result) {
  const Matrix& first = matrices.front();
  const auto count = static_cast<std::uint64_t>(first.rows * first.groups());
  const auto scales = pointers(matrices, &Matrix::scales);
  const auto biases = pointers(matrices, &Matrix::biases);
  std::optional<Blocks> scales_there, biases_there;
  if (first.element_type == ElementType::bfloat16) {
    scales_there = find_in_place(scales, count * 2, kScaleAlignment);
    biases_there = find_in_place(biases, count * 2, kScaleAlignment);
    const bool both = scales_there && biases_there && scales_there->stride == biases_there->stride;
    if (matrices.size() > 1 && !both) {
      scales_there.reset();
      biases_there.reset();
    }
  }
  const Blocks placed_scales = scales_there ? *scales_there : copy_scales(scales, count, first.element_type);
  const Blocks placed_biases = biases_there ? *biases_there : copy_scales(biases, count, first.element_type);
  result.matrix.scales = placed_scales.view;
  result.matrix.biases = placed_biases.view;
  result.expert_scales = static_cast<std::uint32_t>(placed_scales.stride / 2);
}

ExpertMatrices WeightPlacer::experts(const std::string& name, const std::vector<Matrix>& matrices) {
  const Matrix& first = matrices.front();
  ExpertMatrices result;
  result.experts = static_cast<std::uint32_t>(matrices.size());
  result.matrix.format = format_of(name, first);
  result.matrix.rows = static_cast<std::uint32_t>(first.rows);
  result.matrix.columns = static_cast<std::uint32_t>(first.columns);
  if (first.row_bytes() % 4 != 0) unsupported(name, "has rows that are not whole 4-byte words");
  for (const Matrix& matrix : matrices) {
    if (format_of(name, matrix) != result.matrix.format || matrix.element_type != first.element_type) {
      unsupported(name, "has experts of different formats");
    }
  }
  const auto weights = pointers(matrices, &Matrix::weight);
  const std::uint64_t code_bytes = result.matrix.code_bytes();
  const std::optional<Blocks> there = find_in_place(weights, code_bytes, kCodeAlignment);
  const Blocks codes = there ? *there : copy_blocks(weights, code_bytes, kCodeAlignment);
  result.matrix.codes = codes.view;
  result.expert_words = static_cast<std::uint32_t>(codes.stride / 4);
  result.matrix.scales = result.matrix.biases = codes.view;
  if (first.is_affine()) place_scales(matrices, result);
  return result;
}

DeviceMatrix WeightPlacer::matrix(const std::string& name, const Matrix& matrix) {
  return experts(name, {matrix}).matrix;
}

}  // namespace lily::gpu
