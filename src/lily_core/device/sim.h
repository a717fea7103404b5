// device/sim.h -- runs the Metal kernels on the CPU, translated to C++, and checks what a GPU would hide.
//
// A developer's device: kernels run a thread at a time, in an order that can be chosen, with every error named by
// kernel, buffer and line. The checked library also follows every memory access.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"

namespace lily_sim {
class Runner;
struct Launch;
}  // namespace lily_sim

namespace lily::device {

namespace sim {
class KernelLibrary;
class SimPipeline;
}  // namespace sim

enum class ThreadOrder : std::uint8_t { forward, reverse, random };

struct SimOptions {
  bool checked = false;  // the instrumented library: races, bounds, uninitialised reads; tens of times slower
  ThreadOrder order = ThreadOrder::forward;  // of threads and threadgroups
  std::uint64_t seed = 0;
  bool shuffle_stage = false;         // threadgroups of all dispatches of a stage in one random order
  bool check_declared_ranges = true;  // checked only: accesses stay in the range of their binding
  bool poison_allocations = false;    // fill allocations with NaN; the checked library always does
  std::uint32_t workers = 0;          // threads; 0: one for each processor
  std::filesystem::path library;      // kernels to load; empty: those that ship with Lily
};

// What one dispatch touched of one buffer, as half-open ranges of bytes from the buffer's start; empty when equal.
struct SimAccess {
  std::uint32_t stage = 0;
  std::uint32_t dispatch = 0;
  std::uint32_t index = 0;
  std::uint64_t read_begin = 0, read_end = 0;
  std::uint64_t written_begin = 0, written_end = 0;
};

class SimDevice final : public Device {
 public:
  // Throws Error(backend) when the library of kernels cannot be loaded.
  explicit SimDevice(SimOptions options);
  ~SimDevice() override;
  SimDevice(const SimDevice&) = delete;
  SimDevice& operator=(const SimDevice&) = delete;

  [[nodiscard]] std::string name() const override;
  // Its seconds say nothing about a GPU's.
  [[nodiscard]] bool limits_pass_time() const override { return false; }
  [[nodiscard]] std::shared_ptr<Buffer> allocate(std::uint64_t size, BufferStorage storage, std::string label) override;
  [[nodiscard]] std::shared_ptr<Buffer> wrap(const std::byte* data, std::uint64_t size, std::string label,
                                             const CopyProgress& progress) override;
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override;
  // Runs to the end before it returns.
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override;
  [[nodiscard]] std::uint64_t allocated_bytes() const override { return *allocated_; }

  [[nodiscard]] std::vector<std::string> kernel_names() const;
  // What the latest pass touched; only the checked library knows.
  [[nodiscard]] const std::vector<SimAccess>& accesses() const { return accesses_; }

 private:
  void run_stage(const Stage& stage, std::uint32_t number);

  SimOptions options_;
  std::mutex mutex_;  // one pass at a time
  std::shared_ptr<sim::KernelLibrary> library_;
  lily_sim::Runner* runner_ = nullptr;  // owned by the library that made it
  std::unordered_map<std::string, std::unique_ptr<sim::SimPipeline>> pipelines_;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_;
  std::vector<SimAccess> accesses_;
  std::uint64_t stages_run_ = 0;
};

}  // namespace lily::device
