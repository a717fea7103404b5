// device/metal/buffer.mm -- untracked shared buffers, allocated or laid over mapped files.
#include "device/metal/buffer.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

// The planner derives hazards; tracking would serialise all passes that share an arena.
constexpr MTLResourceOptions kOptions =
    MTLResourceCPUCacheModeDefaultCache | MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked;

// Labels are only for tools; a path that is not UTF-8 gets none.
NSString* _Nullable label_of(const std::string& label) { return [NSString stringWithUTF8String:label.c_str()]; }

std::uint64_t round_up(std::uint64_t size, std::uint64_t unit) { return (size + unit - 1) / unit * unit; }

id<MTLBuffer> allocate(id<MTLDevice> device, std::uint64_t size, const std::string& label) {
  id<MTLBuffer> buffer = [device newBufferWithLength:static_cast<NSUInteger>(size) options:kOptions];
  if (buffer == nil) {
    throw Error(ErrorKind::memory_limit,
                "Metal has no room for \"" + label + "\", " + std::to_string(size) +
                    " bytes; close other programs, or lower max_context or prefill_chunk");
  }
  buffer.label = label_of(label);
  return buffer;
}

// Nil when the memory does not start at a page, or Metal does not take it. A mapping has whole pages: the last one ends
// behind the file, and may be named to its end.
id<MTLBuffer> _Nullable lay_over(id<MTLDevice> device, const std::byte* data, std::uint64_t size) {
  const auto page = static_cast<std::uint64_t>(::getpagesize());
  if (size == 0 || reinterpret_cast<std::uintptr_t>(data) % page != 0) return nil;
  return [device newBufferWithBytesNoCopy:const_cast<std::byte*>(data)
                                   length:static_cast<NSUInteger>(round_up(size, page))
                                  options:kOptions
                              deallocator:nil];
}

id<MTLBuffer> wrap(id<MTLDevice> device, const std::byte* data, std::uint64_t size, const std::string& label) {
  id<MTLBuffer> in_place = lay_over(device, data, size);
  if (in_place != nil) {
    in_place.label = label_of(label);
    return in_place;
  }
  id<MTLBuffer> copy = allocate(device, std::max<std::uint64_t>(size, 16), label);
  std::memcpy(copy.contents, data, size);
  return copy;
}

}  // namespace

MetalBuffer::MetalBuffer(id<MTLDevice> device, const Owner& owner, std::uint64_t size, BufferStorage storage,
                         std::string label)
    : size_(size),
      storage_(storage),
      group_(ResidencyGroup::working),
      label_(std::move(label)),
      residency_(owner.residency),
      share_(std::make_unique<BudgetShare>(owner.budget, size_, false, label_)),
      buffer_(allocate(device, std::max<std::uint64_t>(size_, 16), label_)) {
  keep_resident();
}

MetalBuffer::MetalBuffer(id<MTLDevice> device, const Owner& owner, const std::byte* data, std::uint64_t size,
                         std::string label)
    : size_(size),
      storage_(BufferStorage::private_),
      group_(ResidencyGroup::weights),
      label_(std::move(label)),
      residency_(owner.residency),
      share_(std::make_unique<BudgetShare>(owner.budget, size_, true, label_)),
      buffer_(wrap(device, data, size_, label_)) {
  if (buffer_.contents != data) {  // a copy
    share_.reset();
    share_ = std::make_unique<BudgetShare>(owner.budget, size_, false, label_);
  }
  keep_resident();
}

MetalBuffer::~MetalBuffer() {
  @autoreleasepool {
    residency_->remove(group_, buffer_);
  }
}

void MetalBuffer::keep_resident() { residency_->add(group_, buffer_); }

std::byte* _Nullable MetalBuffer::contents() {
  return storage_ == BufferStorage::shared ? static_cast<std::byte*>(buffer_.contents) : nullptr;
}

void MetalBuffer::read(std::uint64_t offset, std::span<std::byte> out) {
  std::memcpy(out.data(), static_cast<const std::byte*>(buffer_.contents) + offset, out.size());
}

void MetalBuffer::write(std::uint64_t offset, std::span<const std::byte> values) {
  std::memcpy(static_cast<std::byte*>(buffer_.contents) + offset, values.data(), values.size());
}

void MetalBuffer::clear() { std::memset(buffer_.contents, 0, size_); }

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
