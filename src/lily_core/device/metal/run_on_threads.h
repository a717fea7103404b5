// device/metal/run_on_threads.h -- a loop over several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace lily::device::metal {

// Runs work(0) to work(count - 1) on up to `threads` other threads, and calls progress(done) on this one. The first
// exception, of either, ends the loop: no further work starts, and it is thrown here when what had started has ended.
void run_on_threads(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& progress);

}  // namespace lily::device::metal
