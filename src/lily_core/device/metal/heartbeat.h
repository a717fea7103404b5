// device/metal/heartbeat.h -- repeats a call from its own thread while there is activity, and for a while
// after.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
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

  // Signals activity. The first call starts the thread; if the system refuses it, only beats are lost.
  void touch();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    Clock::time_point active_until;
    bool stopping = false;
    std::thread thread;
  };
  void run();

  std::function<void()> beat_;
  Clock::duration interval_;
  Clock::duration linger_;
  std::int64_t process_id_;
  // Behind a pointer so that a forked child, where the thread does not exist, can drop it.
  std::unique_ptr<State> state_ = std::make_unique<State>();
};

}  // namespace lily::device::metal
