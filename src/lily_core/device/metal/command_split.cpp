// device/metal/command_split.cpp -- remembers how long passes took, by their shape.
#include "device/metal/command_split.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace lily::device::metal {
namespace {

constexpr std::size_t kMostShapes = 4096;  // contexts and prompts vary; a forgotten shape is measured again

}  // namespace

CommandSplit::Shape CommandSplit::shape_of(std::span<const Stage> stages) {
  std::size_t dispatches = 0;
  std::uint64_t threads = 0;
  for (const Stage& stage : stages) {
    dispatches += stage.dispatches.size();
    for (const Dispatch& dispatch : stage.dispatches) {
      const Size3 grid = dispatch.threadgroups;
      threads += std::uint64_t{grid.x} * grid.y * grid.z * dispatch.threads_per_threadgroup;
    }
  }
  // The leading four bits of the number of threads.
  const int low_bits = std::max(0, static_cast<int>(std::bit_width(threads)) - 4);
  return {{stages.size(), dispatches}, threads >> low_bits << low_bits};
}

std::size_t CommandSplit::parts(std::span<const Stage> stages) const {
  if (stages.size() <= 1) return 1;
  const std::scoped_lock lock(mutex_);
  const auto known = seconds_.find(shape_of(stages));
  const std::size_t wanted = known == seconds_.end() ? (stages.size() + kUnknownStages - 1) / kUnknownStages
                                                     : static_cast<std::size_t>(known->second / kPartSeconds) + 1;
  return std::clamp<std::size_t>(wanted, 1, stages.size());
}

void CommandSplit::note(const Shape& shape, double gpu_seconds) {
  if (!std::isfinite(gpu_seconds) || gpu_seconds <= 0.0) return;
  const double capped = std::min(gpu_seconds, 1000.0);
  const std::scoped_lock lock(mutex_);
  if (seconds_.size() >= kMostShapes) seconds_.clear();
  seconds_[shape] = capped;
}

void CommandSplit::note_pass(const Shape& shape, const PassState& pass) noexcept {
  try {
    const PassResult result = pass.wait();
    if (result.error.empty()) note(shape, result.gpu_seconds);
  } catch (...) {  // NOLINT(bugprone-empty-catch): a pass that is not noted is measured another time
  }
}

}  // namespace lily::device::metal
