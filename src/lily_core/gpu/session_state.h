// gpu/session_state.h -- the state of one sequence on the device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/backend.h"
#include "device/device.h"
#include "gpu/kv_cache.h"
#include "gpu/state_views.h"
#include "weights/config.h"

namespace lily::gpu {

// Recurrent and convolution states of all Gated DeltaNet layers, in one buffer.
struct RecurrentCopy {
  std::shared_ptr<device::Buffer> buffer;
};

class StepsInFlight;

// Two copies of the recurrent states, of the token and position slots and of the logits: a step reads one and writes
// the other, so that the state before it stays whole until the step after it begins. Positions past the sequence's end
// hold nothing in the KV cache, so an abandoned step leaves nothing there either.
class GpuSessionState final : public SessionState {
 public:
  GpuSessionState(std::shared_ptr<device::Device> device, const ModelConfig& config, std::int64_t max_context);
  ~GpuSessionState() override;
  GpuSessionState& operator=(const GpuSessionState&) = delete;

  void reset() override;
  [[nodiscard]] std::unique_ptr<SessionState> clone() const override;
  void visit_memory(const MemoryVisitor& visit) const override;
  [[nodiscard]] std::vector<StateTensor> tensors(std::int64_t position) const override;
  void export_tensor(std::size_t index, std::span<std::byte> out) const override;
  void begin_import(std::int64_t position) override;
  void import_tensor(std::size_t index, std::span<const std::byte> values) override;
  [[nodiscard]] bool is_whole_at(std::int64_t position) const override { return !lost_ && position_ == position; }

  // Makes room for positions [begin, end) and for a step from copy `index`. What is returned must be copied first.
  [[nodiscard]] CacheMove prepare(std::int64_t begin, std::int64_t end, std::uint32_t index);
  // The copying failed: the caches from which it should have copied are the state's again.
  void take_back(const CacheMove& move) { cache_.take_back(move); }
  // Positions [begin, end) were prepared for steps that are given up.
  void give_up(std::int64_t begin, std::int64_t end) { cache_.give_up(begin, end); }
  [[nodiscard]] StateViews views(std::uint32_t index, std::int64_t position) const;
  // Everything that views(index) names.
  [[nodiscard]] std::vector<std::shared_ptr<device::Buffer>> memory() const;
  [[nodiscard]] std::uint32_t cache_capacity() const { return static_cast<std::uint32_t>(cache_.capacity()); }
  [[nodiscard]] std::uint32_t current() const { return current_; }
  // The step from copy `index` is complete: the sequence now ends at `position`.
  void commit(std::uint32_t index, std::int64_t position);
  void mark_lost() { lost_ = true; }

  void write_slots(std::uint32_t index, std::int32_t token, std::int64_t position, std::int64_t attention_position);
  [[nodiscard]] std::int32_t token_slot(std::uint32_t index) const;
  // Of the position before the sequence's end.
  void read_logits(std::span<float> logits) const;

  // The decode steps that read and write this state.
  [[nodiscard]] StepsInFlight& steps() { return *steps_; }

 private:
  GpuSessionState(const GpuSessionState& other);
  struct LayerOffsets {
    std::uint64_t state = 0, conv_state = 0;
  };
  [[nodiscard]] std::uint64_t state_bytes() const;
  [[nodiscard]] std::uint64_t conv_bytes() const;
  [[nodiscard]] std::uint64_t logits_stride() const;
  [[nodiscard]] std::shared_ptr<RecurrentCopy> new_recurrent(bool zero) const;
  void ensure_current();

  std::shared_ptr<device::Device> device_;
  ModelConfig config_;
  std::vector<LayerOffsets> offsets_;       // [layers], of GDN layers
  std::vector<std::uint32_t> cache_index_;  // [layers], of attention layers in the cache
  std::uint64_t recurrent_bytes_ = 0;

  std::array<std::shared_ptr<RecurrentCopy>, 2> recurrent_;
  KvCache cache_;
  std::shared_ptr<device::Buffer> slots_;   // two of kSlotBytes
  std::shared_ptr<device::Buffer> logits_;  // f32 [vocab_size] twice, logits_stride() bytes apart
  std::uint32_t current_ = 0;
  bool lost_ = false;
  std::unique_ptr<StepsInFlight> steps_;
};

}  // namespace lily::gpu
