// device/cuda/cuda_ticket.h -- a pass in flight on the GPU.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/device.h"

namespace lily::device::cuda {

// An event of a stream.
class Event {
 public:
  explicit Event(std::shared_ptr<const Context> context);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(StreamHandle* stream);
  [[nodiscard]] EventHandle* handle() const { return handle_; }

 private:
  std::shared_ptr<const Context> context_;
  EventHandle* handle_ = nullptr;
};

// State after a kernel's fault: CUDA ends the context, so nothing runs any more.
struct SharedFate {
  std::mutex mutex;
  std::string lost;  // empty: alive
};

class CudaTicket final : public Ticket {
 public:
  CudaTicket(std::shared_ptr<const Context> context, std::shared_ptr<SharedFate> fate);

  [[nodiscard]] Event& begin() { return begin_; }
  [[nodiscard]] Event& kernels_done() { return kernels_done_; }
  [[nodiscard]] Event& end() { return end_; }

  [[nodiscard]] bool done() override;
  PassResult wait() override;

 private:
  std::shared_ptr<const Context> context_;
  std::shared_ptr<SharedFate> fate_;
  Event begin_, kernels_done_, end_;
  std::mutex mutex_;
  std::optional<PassResult> result_;
};

// A pass that did not start.
class FailedTicket final : public Ticket {
 public:
  explicit FailedTicket(std::string error, ErrorKind kind = ErrorKind::backend)
      : error_(std::move(error)), kind_(kind) {}
  [[nodiscard]] bool done() override { return true; }
  PassResult wait() override { return {.gpu_seconds = 0.0, .error = error_, .kind = kind_}; }

 private:
  std::string error_;
  ErrorKind kind_;
};

}  // namespace lily::device::cuda
