// device/metal/command_split.h -- how many command buffers a pass takes, so that none holds the GPU for long.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "device/device.h"
#include "device/metal/pass_state.h"

namespace lily::device::metal {

// Systems end command buffers of several seconds, and earlier ones while a display waits. A pass whose seconds are
// known is cut into parts of `kPartSeconds`; an unknown one into parts of `kUnknownStages` stages. A decode step, once
// known, is one command buffer.
class CommandSplit {
 public:
  static constexpr double kPartSeconds = 0.1;
  static constexpr std::size_t kUnknownStages = 64;

  // Command buffers for a pass, between 1 and its stages.
  [[nodiscard]] std::size_t parts(std::span<const Stage> stages) const;
  // What a completed pass of this shape took on the device.
  void note(std::span<const Stage> stages, double gpu_seconds) { note(shape_of(stages), gpu_seconds); }

  // Passes of equal shape do the same work: numbers of stages and dispatches, and threads to within an eighth.
  using Shape = std::pair<std::pair<std::size_t, std::size_t>, std::uint64_t>;
  [[nodiscard]] static Shape shape_of(std::span<const Stage> stages);
  void note(const Shape& shape, double gpu_seconds);
  // The same of a pass that is done, if it completed. Never throws: a lost note costs a few command buffers.
  void note_pass(const Shape& shape, const PassState& pass) noexcept;

 private:
  mutable std::mutex mutex_;
  std::map<Shape, double> seconds_;
};

}  // namespace lily::device::metal
