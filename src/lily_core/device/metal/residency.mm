// device/metal/residency.mm -- one residency set for the weights, one for the rest, and a heartbeat for both.
#include "device/metal/residency.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <mutex>
#include <optional>

#include "device/metal/heartbeat.h"
#include "device/metal/text.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

// Systems unwire about a second after the last use.
constexpr std::chrono::milliseconds kInterval{100};
constexpr std::chrono::seconds kLinger{180};

class NoResidency final : public Residency {
 public:
  void add(ResidencyGroup /*group*/, id<MTLBuffer> /*buffer*/) override {}
  void remove(ResidencyGroup /*group*/, id<MTLBuffer> /*buffer*/) override {}
  void prepare() override {}
};

class API_AVAILABLE(macos(15.0)) SetResidency final : public Residency {
 public:
  SetResidency(id<MTLCommandQueue> queue, id<MTLResidencySet> weights, id<MTLResidencySet> working)
      : process_id_(::getpid()), queue_(queue), sets_{weights, working} {
    for (id<MTLResidencySet> set : sets_) [queue_ addResidencySet:set];
    heartbeat_.emplace([this] { request(); }, kInterval, kLinger);
  }
  ~SetResidency() override {
    heartbeat_.reset();
    if (::getpid() != process_id_) return;  // a forked child may not call Metal
    @autoreleasepool {
      for (id<MTLResidencySet> set : sets_) {
        [queue_ removeResidencySet:set];
        [set endResidency];
      }
    }
  }
  SetResidency(const SetResidency&) = delete;
  SetResidency& operator=(const SetResidency&) = delete;

  void add(ResidencyGroup group, id<MTLBuffer> buffer) override {
    const std::scoped_lock lock(mutex_);
    [set_of(group) addAllocation:buffer];
    changed_ = true;
  }
  void remove(ResidencyGroup group, id<MTLBuffer> buffer) override {
    if (::getpid() != process_id_) return;
    const std::scoped_lock lock(mutex_);
    [set_of(group) removeAllocation:buffer];
    [set_of(group) commit];  // now: the buffer's memory is about to go
  }
  void prepare() override {
    {
      const std::scoped_lock lock(mutex_);
      if (changed_) {
        for (id<MTLResidencySet> set : sets_) {
          [set commit];
          [set requestResidency];
        }
        changed_ = false;
      }
    }
    heartbeat_->touch();
  }

 private:
  id<MTLResidencySet> set_of(ResidencyGroup group) { return sets_[static_cast<std::size_t>(group)]; }
  void request() {
    @autoreleasepool {
      const std::scoped_lock lock(mutex_);
      for (id<MTLResidencySet> set : sets_) [set requestResidency];
    }
  }

  pid_t process_id_;
  std::mutex mutex_;
  id<MTLCommandQueue> queue_;
  std::array<id<MTLResidencySet>, 2> sets_;
  bool changed_ = false;
  std::optional<Heartbeat> heartbeat_;
};

API_AVAILABLE(macos(15.0)) id<MTLResidencySet> _Nullable make_set(id<MTLDevice> device, NSString* label) {
  MTLResidencySetDescriptor* descriptor = [[MTLResidencySetDescriptor alloc] init];
  descriptor.label = label;
  return [device newResidencySetWithDescriptor:descriptor error:nil];
}

}  // namespace

std::shared_ptr<Residency> make_residency(id<MTLDevice> device, id<MTLCommandQueue> queue) {
  if (@available(macOS 15.0, *)) {
    id<MTLResidencySet> weights = make_set(device, @"Lily weights");
    id<MTLResidencySet> working = make_set(device, @"Lily working memory");
    if (weights != nil && working != nil) return std::make_shared<SetResidency>(queue, weights, working);
  }
  return std::make_shared<NoResidency>();  // it only costs speed
}

bool has_residency_sets() {
  if (@available(macOS 15.0, *)) return true;
  return false;
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
