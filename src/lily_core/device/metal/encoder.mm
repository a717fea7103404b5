// device/metal/encoder.mm -- one Metal call for each command.
#include "device/metal/encoder.h"

#include <algorithm>

#include "device/metal/buffer.h"
#include "device/metal/pipeline.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

constexpr std::uint32_t kThreadgroupAlignment = 16;  // bytes

}  // namespace

void EncoderSink::set_pipeline(const Pipeline& pipeline) {
  [encoder_ setComputePipelineState:static_cast<const MetalPipeline&>(pipeline).metal()];
}

void EncoderSink::set_buffer(std::uint32_t index, Buffer& buffer, std::uint64_t offset) {
  [encoder_ setBuffer:static_cast<MetalBuffer&>(buffer).metal()
               offset:static_cast<NSUInteger>(offset)
              atIndex:index];
}

void EncoderSink::set_offset(std::uint32_t index, std::uint64_t offset) {
  [encoder_ setBufferOffset:static_cast<NSUInteger>(offset) atIndex:index];
}

void EncoderSink::set_bytes(std::uint32_t index, std::span<const std::byte> bytes) {
  [encoder_ setBytes:bytes.data() length:bytes.size() atIndex:index];
}

void EncoderSink::set_threadgroup_bytes(std::uint32_t bytes) {
  // A positive multiple of the alignment: nothing says that Metal accepts a length of 0.
  const std::uint32_t units = (std::max(bytes, 1U) + kThreadgroupAlignment - 1) / kThreadgroupAlignment;
  [encoder_ setThreadgroupMemoryLength:units * kThreadgroupAlignment atIndex:0];
}

void EncoderSink::dispatch(Size3 threadgroups, std::uint32_t threads) {
  [encoder_ dispatchThreadgroups:MTLSizeMake(threadgroups.x, threadgroups.y, threadgroups.z)
           threadsPerThreadgroup:MTLSizeMake(threads, 1, 1)];
}

void EncoderSink::barrier() { [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers]; }

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
