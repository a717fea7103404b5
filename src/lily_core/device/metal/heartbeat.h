// device/metal/heartbeat.h -- repeats something from a thread of its own while there is activity, and for a while
// after.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace lily::device::metal {

class Heartbeat {
 public:
  using Clock = std::chrono::steady_clock;

  // `beat` runs every `interval`, from a call of touch() until `linger` has passed without another one.
  Heartbeat(std::function<void()> beat, Clock::duration interval, Clock::duration linger);
  // Stops; no beat runs after this.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // There is activity. The thread is started by the first call.
  void touch();

 private:
  void run();

  std::function<void()> beat_;
  Clock::duration interval_;
  Clock::duration linger_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Clock::time_point active_until_{};
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lily::device::metal
