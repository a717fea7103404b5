// device/metal/once_map.h -- things made once per name, several at the same time.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

namespace lily::device::metal {

// Threads that ask for the same name wait for the one that makes it; other names do not wait for each other.
template <class T>
class OnceMap {
 public:
  // Makes the thing of this name with `make`, a function that returns a unique_ptr<T>, if nobody has. When `make`
  // throws, the next who asks tries again.
  template <class Make>
  const T& find_or_make(const std::string& name, Make&& make) {
    Entry& entry = entry_of(name);
    const std::scoped_lock lock(entry.mutex);
    if (entry.value == nullptr) entry.value = std::forward<Make>(make)();
    return *entry.value;
  }

 private:
  struct Entry {
    std::mutex mutex;
    std::unique_ptr<T> value;
  };
  Entry& entry_of(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<Entry>& entry = entries_[name];
    if (entry == nullptr) entry = std::make_unique<Entry>();
    return *entry;
  }

  std::mutex mutex_;
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries_;
};

}  // namespace lily::device::metal
