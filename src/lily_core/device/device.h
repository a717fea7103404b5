// device/device.h -- the interface of a device for the GPU engine: buffers, pipelines and planned passes, no models.
//
// One implementation each: metal.mm (Apple), cuda.cpp (NVIDIA), sim.cpp (the same kernels on the CPU, with checks).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/progress.h"

namespace lily::device {

enum class BufferStorage : std::uint8_t {
  shared,   // for small data that host and kernels exchange often: the host also uses it through contents()
  private_  // in the device's own memory; the host copies with read(), write() and clear()
};

// Memory that kernels address. Freed when the last owner lets go; a pass in flight must be waited for first.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual std::uint64_t size() const = 0;  // bytes
  // Null for private_. Call it again after each submit: that is how a device notices what the host writes.
  [[nodiscard]] virtual std::byte* contents() = 0;
  // Copies a range out, or in, before returning. No pass in flight may write a range that is read, or use one that is
  // written; passes that use other ranges of the buffer may be in flight.
  virtual void read(std::uint64_t offset, std::span<std::byte> out) = 0;
  virtual void write(std::uint64_t offset, std::span<const std::byte> values) = 0;
  virtual void clear() = 0;  // writes zeros
  [[nodiscard]] virtual const std::string& label() const = 0;
};

// The value of one [[function_constant(index)]]; bool and integer constants are given as integers.
struct FunctionConstant {
  std::uint32_t index = 0;
  std::int32_t value = 0;
};

// How a kernel uses one buffer slot, read off its signature: `device const T*` reads, `device T*` reads and writes.
struct SlotUse {
  std::uint32_t index = 0;
  bool written = false;
};

// A kernel with its function constants, compiled.
class Pipeline {
 public:
  virtual ~Pipeline() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::uint32_t max_threads_per_threadgroup() const = 0;
  [[nodiscard]] virtual std::span<const SlotUse> slots() const = 0;
};

// Bytes [offset, offset + size) of a buffer bound to slot `index`; the kernel's pointer is at `offset`. The range is
// what the dispatch may touch: hazards are derived from it.
struct BufferBinding {
  std::uint32_t index = 0;
  Buffer* buffer = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  bool written = false;
};

struct Size3 {
  std::uint32_t x = 1;
  std::uint32_t y = 1;
  std::uint32_t z = 1;
};

// One kernel launch. Argument structs (setBytes) are at most 256 bytes.
struct Dispatch {
  const Pipeline* pipeline = nullptr;
  std::vector<BufferBinding> buffers;
  std::uint32_t bytes_index = 0;        // slot of the argument struct
  std::vector<std::byte> bytes;         // empty: the kernel takes none
  std::uint32_t threadgroup_bytes = 0;  // of [[threadgroup(0)]], 0 when the kernel has none
  Size3 threadgroups;
  std::uint32_t threads_per_threadgroup = 0;  // a multiple of 32
};

// Dispatches of one stage may run at the same time; a stage starts when the ones before it are complete.
struct Stage {
  std::vector<Dispatch> dispatches;
};

// The outcome of a submitted pass.
struct PassResult {
  double gpu_seconds = 0.0;
  std::string error;                    // empty: completed
  ErrorKind kind = ErrorKind::backend;  // of the error: memory_limit when the device had no memory left
};

// A pass in flight.
class Ticket {
 public:
  virtual ~Ticket() = default;
  [[nodiscard]] virtual bool done() = 0;
  // Blocks until the pass has completed or failed. May be called from any thread, more than once.
  virtual PassResult wait() = 0;
};

// A pipeline that will be requested.
struct PipelineRequest {
  std::string kernel;
  std::vector<FunctionConstant> constants;
};
class Device {
 public:
  virtual ~Device() = default;
  [[nodiscard]] virtual std::string name() const = 0;

  // Contents are undefined until written. Throws Error(memory_limit) when there is no room.
  [[nodiscard]] virtual std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage,
                                                         std::string label) = 0;
  // Read-only memory of the host (a mapped file), used in place where the device can. The memory outlives the buffer.
  // A device that copies it calls `progress`, on this thread, and stops if it throws.
  [[nodiscard]] virtual std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                                     const CopyProgress& progress) = 0;
  // Whether wrap() copies: the memory that was wrapped is not read later.
  [[nodiscard]] virtual bool copies_wrapped() const { return false; }

  // The pipeline of a kernel (its host_name) with these constants; compiled on first use, then cached. The reference
  // lives as long as the device. Throws Error(backend) with the compiler's message, file and line.
  [[nodiscard]] virtual const Pipeline& pipeline(const std::string& kernel,
                                                 std::span<const FunctionConstant> constants) = 0;
  // Whether pipelines take so long that a model's should all be made while it is loaded.
  [[nodiscard]] virtual bool compiles_ahead() const { return false; }
  // Makes these pipelines, as many at a time as the machine can; any other one is still made when it is first asked
  // for. Tells `progress`, on this thread, and stops when it throws. Throws what pipeline() does.
  virtual void compile(std::span<const PipelineRequest> requests, const CompileProgress& progress) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      static_cast<void>(pipeline(requests[i].kernel, requests[i].constants));
      if (progress) progress(i + 1, requests.size());
    }
  }

  // Whether a pass should be kept short: systems end work of several seconds, and stutter before that.
  [[nodiscard]] virtual bool limits_pass_time() const { return true; }

  // Runs the stages in order, after every pass submitted before. Everything that the dispatches name is kept alive by
  // the caller until the ticket is done. Never throws for what goes wrong on the device: see Ticket::wait.
  [[nodiscard]] virtual std::unique_ptr<Ticket> submit(std::span<const Stage> stages) = 0;

  // Bytes of buffers alive now, wrapped memory not counted.
  [[nodiscard]] virtual std::uint64_t allocated_bytes() const = 0;
  // Bytes that all buffers together, wrapped memory included, should stay below; 0: unknown.
  [[nodiscard]] virtual std::uint64_t memory_limit() const { return 0; }
  // How the owner of the machine can raise that limit to `bytes`, as part of a sentence; empty: impossible.
  [[nodiscard]] virtual std::string memory_limit_remedy(std::uint64_t /*bytes*/) const { return ""; }
  // Whether gemm_affine_tensor_m32 and _m64 are to be used in the place of gemm_affine_m32 and _m64.
  [[nodiscard]] virtual bool has_tensor_gemm() { return false; }
  // Whether attention_prefill was compiled for kWideAttentionRows rows a threadgroup, not kAttentionRows.
  [[nodiscard]] virtual bool has_wide_attention() const { return false; }
};

}  // namespace lily::device
