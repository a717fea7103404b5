// device/cuda/launch_list.h -- the stages of a pass as the driver takes them: functions, grids, parameter values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cuda/cuda_buffer.h"
#include "device/cuda/cuda_pipeline.h"
#include "device/device.h"

namespace lily::device::cuda {

struct Launch {
  const CudaPipeline* pipeline = nullptr;
  FunctionHandle* function = nullptr;
  Size3 grid;
  std::uint32_t threads = 0;
  std::uint32_t threadgroup_bytes = 0;
  std::uint32_t stage = 0;
  std::uint32_t first_value = 0;  // of its parameters in values

  friend bool operator==(const Launch& a, const Launch& b);
};

class LaunchList {
 public:
  // Loads the pipelines' code. Throws Error(backend) for what a kernel cannot take.
  explicit LaunchList(std::span<const Stage> stages);

  [[nodiscard]] std::span<const Launch> launches() const { return launches_; }
  [[nodiscard]] std::uint32_t stages() const { return stages_; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  // Equal lists do the same to the same memory.
  [[nodiscard]] bool operator==(const LaunchList& other) const {
    return hash_ == other.hash_ && launches_ == other.launches_ && values_ == other.values_;
  }
  // Whether a graph of the other list only needs other values to do this list's work.
  [[nodiscard]] bool has_shape_of(const LaunchList& other) const;
  // Whether launch i is the same in both lists, which are of one shape.
  [[nodiscard]] bool same_launch(std::size_t i, const LaunchList& other) const;
  // Pointers to the values of a launch's parameters, as the driver takes them; valid until the next call.
  [[nodiscard]] void** parameters(std::size_t i);

  // Shared buffers that kernels use, and those that they may write; each once.
  [[nodiscard]] std::span<CudaBuffer* const> shared_used() const { return shared_used_; }
  [[nodiscard]] std::span<CudaBuffer* const> shared_written() const { return shared_written_; }

 private:
  void add(const Dispatch& dispatch, std::uint32_t stage);
  void add_buffer(const BufferBinding& binding);
  void add_arguments(std::span<const std::byte> bytes);
  [[nodiscard]] std::span<const std::uint64_t> values_of(std::size_t i) const;
  void compute_hash();

  std::vector<Launch> launches_;
  std::vector<std::uint64_t> values_;  // addresses, and argument structs in whole words
  std::vector<CudaBuffer*> shared_used_;
  std::vector<CudaBuffer*> shared_written_;
  std::vector<void*> pointers_;
  std::uint32_t stages_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace lily::device::cuda
