// device/cuda/cuda_ticket.cpp -- waiting, timing, and what went wrong.
#include "device/cuda/cuda_ticket.h"

#include <utility>

namespace lily::device::cuda {

Event::Event(std::shared_ptr<const Context> context) : context_(std::move(context)) {
  const Context::Use use(*context_);
  context_->driver().check(context_->driver().create_event(&handle_, kEventDefault), "making an event");
}

Event::~Event() {
  const Context::Use use(*context_, std::nothrow);
  context_->driver().destroy_event(handle_);
}

void Event::record(StreamHandle* stream) {
  context_->driver().check(context_->driver().record_event(handle_, stream), "marking a place in a pass");
}

CudaTicket::CudaTicket(std::shared_ptr<const Context> context, std::shared_ptr<SharedFate> fate)
    : context_(std::move(context)), fate_(std::move(fate)), begin_(context_), kernels_done_(context_), end_(context_) {}

bool CudaTicket::done() {
  const std::scoped_lock lock(mutex_);
  if (result_.has_value()) return true;
  const Context::Use use(*context_, std::nothrow);
  return context_->driver().query_event(end_.handle()) != kNotReady;
}

PassResult CudaTicket::wait() {
  const std::scoped_lock lock(mutex_);
  if (result_.has_value()) return *result_;
  const Context::Use use(*context_, std::nothrow);
  const Driver& driver = context_->driver();
  PassResult result;
  const Result status = driver.synchronize_event(end_.handle());
  if (status == kSuccess) {
    float milliseconds = 0.0F;
    driver.elapsed(&milliseconds, begin_.handle(), kernels_done_.handle());
    result.gpu_seconds = static_cast<double>(milliseconds) / 1000.0;
  } else {
    result.error =
        driver.text(status) + ": the GPU gave up this pass or one before it, and this process cannot use it any more";
    const std::scoped_lock fate_lock(fate_->mutex);
    if (fate_->lost.empty()) fate_->lost = result.error;
  }
  result_ = result;
  return result;
}

}  // namespace lily::device::cuda
