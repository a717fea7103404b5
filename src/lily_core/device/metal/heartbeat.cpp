// device/metal/heartbeat.cpp -- the thread: sleeps without activity, otherwise beats once an interval.
#include "device/metal/heartbeat.h"

#include <unistd.h>

#include <system_error>
#include <utility>

namespace lily::device::metal {

Heartbeat::Heartbeat(std::function<void()> beat, Clock::duration interval, Clock::duration linger)
    : beat_(std::move(beat)), interval_(interval), linger_(linger), process_id_(::getpid()) {}

Heartbeat::~Heartbeat() {
  if (::getpid() != process_id_) {
    static_cast<void>(state_.release());  // a thread that does not exist can neither be joined nor be detached
    return;
  }
  {
    const std::scoped_lock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

void Heartbeat::touch() {
  const std::scoped_lock lock(state_->mutex);
  const Clock::time_point now = Clock::now();
  const bool asleep = now >= state_->active_until;
  state_->active_until = now + linger_;
  if (!state_->thread.joinable()) {
    try {
      state_->thread = std::thread([this] { run(); });
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): no thread to be had; the next call asks again
    }
  } else if (asleep) {
    state_->changed.notify_all();
  }
}

void Heartbeat::run() {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  while (!state.stopping) {
    if (Clock::now() >= state.active_until) {
      state.changed.wait(lock, [&] { return state.stopping || Clock::now() < state.active_until; });
    } else {
      lock.unlock();
      beat_();
      lock.lock();
      state.changed.wait_for(lock, interval_, [&] { return state.stopping; });
    }
  }
}

}  // namespace lily::device::metal
