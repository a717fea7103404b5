// device/metal/heartbeat.cpp -- the thread: asleep without activity, else a beat an interval.
#include "device/metal/heartbeat.h"

#include <utility>

namespace lily::device::metal {

Heartbeat::Heartbeat(std::function<void()> beat, Clock::duration interval, Clock::duration linger)
    : beat_(std::move(beat)), interval_(interval), linger_(linger) {}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Heartbeat::touch() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  const bool asleep = now >= active_until_;
  active_until_ = now + linger_;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  } else if (asleep) {
    changed_.notify_all();
  }
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (Clock::now() >= active_until_) {
      changed_.wait(lock, [this] { return stopping_ || Clock::now() < active_until_; });
    } else {
      lock.unlock();
      beat_();
      lock.lock();
      changed_.wait_for(lock, interval_, [this] { return stopping_; });
    }
  }
}

}  // namespace lily::device::metal
