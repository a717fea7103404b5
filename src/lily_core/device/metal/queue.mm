// device/metal/queue.mm -- encodes and commits command buffers, and reads off how they ended.
#include "device/metal/queue.h"

#include <algorithm>
#include <utility>

#include "device/metal/encoder.h"
#include "device/metal/text.h"
#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

id<MTLSharedEvent> make_event(id<MTLDevice> device) {
  id<MTLSharedEvent> event = [device newSharedEvent];
  if (event == nil) throw Error(ErrorKind::backend, "Metal made no shared event");
  event.label = @"Lily passes";
  return event;
}

// Nothing may leave a completion handler: without memory for the words, the error has none.
CommandOutcome outcome_of(id<MTLCommandBuffer> commands, const std::string& part) noexcept {
  CommandOutcome outcome;
  NSError* error = commands.error;
  if (error == nil && commands.status != MTLCommandBufferStatusError) {
    outcome.gpu_end = commands.GPUEndTime;
    outcome.gpu_seconds = std::max(0.0, outcome.gpu_end - commands.GPUStartTime);
    return outcome;
  }
  outcome.error.emplace();
  try {
    outcome.error->of_command_buffer = error != nil && [error.domain isEqualToString:MTLCommandBufferErrorDomain];
    outcome.error->code = error != nil ? static_cast<std::int64_t>(error.code) : 0;
    outcome.error->description = text_of(error);
    outcome.error->part = part;
  } catch (...) {
  }
  return outcome;
}

}  // namespace

MetalQueue::MetalQueue(id<MTLDevice> device, id<MTLCommandQueue> queue, std::shared_ptr<Residency> residency)
    : queue_(queue), event_(make_event(device)), residency_(std::move(residency)) {
  limits_.threadgroup_bytes = static_cast<std::uint32_t>(device.maxThreadgroupMemoryLength);
}

std::string MetalQueue::commit(const CommandPart& part, CommandEnd ended) {
  @autoreleasepool {
    id<MTLCommandBuffer> commands = [queue_ commandBufferWithUnretainedReferences];
    if (commands == nil) return "Metal made no command buffer";
    commands.label = string_of(part.label);
    if (part.after > 0) [commands encodeWaitForEvent:event_ value:part.after];
    id<MTLComputeCommandEncoder> encoder =
        [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    if (encoder == nil) return "Metal made no command encoder";
    {
      EncoderSink sink(encoder);
      encode_stages(part.stages, sink);
    }
    [commands encodeSignalEvent:event_ value:part.number];
    const CommandEnd report = std::move(ended);
    const std::string label = part.label;
    [commands addCompletedHandler:^(id<MTLCommandBuffer> done) {
      @autoreleasepool {
        report(outcome_of(done, label));
      }
    }];
    [commands commit];
    return "";
  }
}

void MetalQueue::release(std::uint64_t number) noexcept {
  if (event_.signaledValue < number) event_.signaledValue = number;
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
