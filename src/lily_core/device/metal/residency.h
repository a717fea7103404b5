// device/metal/residency.h -- keeps buffers resident between passes, if the system supports it (macOS 15).
//
// Without it every pass after a pause would pay for wiring the weights again.
#pragma once

#import <Metal/Metal.h>

#include <memory>

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

enum class ResidencyGroup : std::uint8_t {
  weights,  // wrapped files: as long as the model
  working   // everything else: comes and goes with sessions
};

class Residency {
 public:
  virtual ~Residency() = default;
  virtual void add(ResidencyGroup group, id<MTLBuffer> buffer) = 0;
  virtual void remove(ResidencyGroup group, id<MTLBuffer> buffer) = 0;
  // Before a pass is submitted: what was added becomes resident, and stays so while passes keep coming.
  virtual void prepare() = 0;
};

// Before macOS 15, one that does nothing. All passes must have ended when it goes.
[[nodiscard]] std::shared_ptr<Residency> make_residency(id<MTLDevice> device, id<MTLCommandQueue> queue);

[[nodiscard]] bool has_residency_sets();

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
