// device/metal/submission.mm -- command buffers in a chain: each waits for the event of the one before.
//
// Buffers are untracked, so Metal knows no order between command buffers; the event is that order. A command buffer that
// fails does not signal it: then its handler does, or everything after would wait for ever.
#include "device/metal/submission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device/metal/encoder.h"
#include "device/metal/text.h"
#include "engine/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

id<MTLSharedEvent> make_event(id<MTLDevice> device) {
  id<MTLSharedEvent> event = [device newSharedEvent];
  if (event == nil) throw Error(ErrorKind::backend, "Metal made no shared event");
  event.label = @"Lily passes";
  return event;
}

CommandOutcome outcome_of(id<MTLCommandBuffer> commands, const std::string& part) {
  CommandOutcome outcome;
  NSError* error = commands.error;
  if (error != nil || commands.status == MTLCommandBufferStatusError) {
    outcome.error = CommandError{.of_command_buffer = error != nil && [error.domain isEqualToString:MTLCommandBufferErrorDomain],
                                 .code = error != nil ? static_cast<std::int64_t>(error.code) : 0,
                                 .description = text_of(error),
                                 .part = part};
  } else {
    outcome.gpu_seconds = std::max(0.0, commands.GPUEndTime - commands.GPUStartTime);
  }
  return outcome;
}

CommandOutcome failure(const std::string& reason, const std::string& part) {
  return {.gpu_seconds = 0.0,
          .error = CommandError{.of_command_buffer = false, .code = 0, .description = reason, .part = part}};
}

}  // namespace

Submission::Submission(id<MTLDevice> device, id<MTLCommandQueue> queue, std::shared_ptr<Residency> residency)
    : queue_(queue), event_(make_event(device)), residency_(std::move(residency)) {
  limits_.threadgroup_bytes = static_cast<std::uint32_t>(device.maxThreadgroupMemoryLength);
}

Submission::~Submission() {
  if (latest_ != nullptr) static_cast<void>(latest_->wait());
}

std::unique_ptr<Ticket> Submission::submit(std::span<const Stage> stages) {
  const std::lock_guard lock(mutex_);
  const std::size_t parts = split_->parts(stages);
  auto pass = std::make_shared<PassState>(static_cast<std::uint32_t>(parts), health_);
  auto ticket = std::make_unique<PassTicket>(pass);
  if (const std::optional<std::string> lost = health_->lost(); lost.has_value()) {
    pass->fail("the GPU was lost by an earlier pass: " + *lost);
    return ticket;
  }
  if (const std::string fault = find_fault(stages, limits_); !fault.empty()) {
    pass->fail(fault);
    return ticket;
  }
  @autoreleasepool {
    residency_->prepare();
    const CommandSplit::Shape shape = CommandSplit::shape_of(stages);
    for (std::size_t i = 0; i < parts; ++i) {
      const std::size_t begin = i * stages.size() / parts;
      const std::size_t end = (i + 1) * stages.size() / parts;
      const Part part{stages.subspan(begin, end - begin),
                      "part " + std::to_string(i + 1) + " of " + std::to_string(parts)};
      const std::string problem = commit(part, pass, shape);
      if (!problem.empty()) pass->finish_one(failure(problem, part.label));
    }
  }
  latest_ = std::move(pass);
  return ticket;
}

std::string Submission::commit(const Part& part, const std::shared_ptr<PassState>& pass,
                               const CommandSplit::Shape& shape) {
  id<MTLCommandBuffer> commands = [queue_ commandBufferWithUnretainedReferences];
  if (commands == nil) return "Metal made no command buffer";
  commands.label = string_of(part.label);
  if (committed_ > 0) [commands encodeWaitForEvent:event_ value:committed_];
  id<MTLComputeCommandEncoder> encoder =
      [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  if (encoder == nil) return "Metal made no command encoder";
  EncoderSink sink(encoder);
  encode_stages(part.stages, sink);
  [encoder endEncoding];
  const std::uint64_t number = ++committed_;
  [commands encodeSignalEvent:event_ value:number];

  id<MTLSharedEvent> event = event_;
  const std::shared_ptr<CommandSplit> split = split_;
  const std::shared_ptr<PassState> state = pass;
  const std::string label = part.label;
  const CommandSplit::Shape noted = shape;
  [commands addCompletedHandler:^(id<MTLCommandBuffer> ended) {
    const CommandOutcome outcome = outcome_of(ended, label);
    if (outcome.error.has_value() && event.signaledValue < number) event.signaledValue = number;
    state->finish_one(outcome);
    if (!state->done()) return;
    const PassResult result = state->wait();
    if (result.error.empty()) split->note(noted, result.gpu_seconds);
  }];
  [commands commit];
  return "";
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
