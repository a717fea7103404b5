// gpu/pass_runner.cpp -- submits planned passes and waits for them.
#include "gpu/pass_runner.h"

#include "base/error.h"
#include "gpu/encoder.h"

namespace lily::gpu {

void PassRunner::set_options(const Options& options) {
  options.validate();
  options_ = options;
  ++options_revision_;
}

void PassRunner::move_caches(GpuSessionState& state, const CacheMove& move) {
  if (move.copies.empty()) return;
  try {
    Pass pass;
    Encoder encoder(*device_, pass, options_, 0.0F);
    for (const CacheCopy& copy : move.copies) encoder.copy_words(copy.from, copy.to);
    run(plan(pass));
  } catch (...) {
    state.take_back(move);
    throw;
  }
}

double PassRunner::run(const PlannedPass& pass) {
  double seconds = 0.0;
  for (const Submission& submission : pass.submissions) {
    const device::PassResult result = device_->submit(submission.stages)->wait();
    ++counters_.submissions;
    ++counters_.waits;
    if (!result.error.empty()) {
      throw Error(result.kind, "the " + device_->name() + " device could not complete a pass: " + result.error);
    }
    seconds += result.gpu_seconds;
    if (submission.then) submission.then();
  }
  return seconds;
}

}  // namespace lily::gpu
