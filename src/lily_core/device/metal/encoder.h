// device/metal/encoder.h -- a compute command encoder as a command sink.
#pragma once

#import <Metal/Metal.h>

#include "device/metal/command_sink.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

// Ends the encoder on destruction: otherwise Metal would end the process.
class EncoderSink final : public CommandSink {
 public:
  explicit EncoderSink(id<MTLComputeCommandEncoder> encoder) : encoder_(encoder) {}
  ~EncoderSink() override { [encoder_ endEncoding]; }
  EncoderSink(const EncoderSink&) = delete;
  EncoderSink& operator=(const EncoderSink&) = delete;

  void set_pipeline(const Pipeline& pipeline) override;
  void set_buffer(std::uint32_t index, Buffer& buffer, std::uint64_t offset) override;
  void set_offset(std::uint32_t index, std::uint64_t offset) override;
  void set_bytes(std::uint32_t index, std::span<const std::byte> bytes) override;
  void set_threadgroup_bytes(std::uint32_t bytes) override;
  void dispatch(Size3 threadgroups, std::uint32_t threads) override;
  void barrier() override;

 private:
  id<MTLComputeCommandEncoder> encoder_;
};

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
