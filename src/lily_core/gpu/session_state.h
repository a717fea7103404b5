// gpu/session_state.h -- the state of one sequence on the device, and the decode steps of it that are in flight.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "engine/backend.h"
#include "engine/config.h"
#include "gpu/decode_pass.h"
#include "gpu/planner.h"
#include "gpu/state_views.h"

namespace lily::gpu {

// Recurrent and convolution states of all Gated DeltaNet layers, in one buffer.
struct RecurrentCopy {
  std::shared_ptr<device::Buffer> buffer;
};

// Keys and values of all attention layers. Positions below `written` belong to some state that shares this; a state
// that ends there goes on in place, another one copies.
struct CacheBuffers {
  std::vector<std::shared_ptr<device::Buffer>> keys, values;  // [attention layers] bf16 [kv_heads, capacity, head_dim]
  std::int64_t capacity = 0;
  std::atomic<std::int64_t> written{0};
};

// Planned passes of decode steps, one for each direction between the two copies of the state.
struct StepPlan {
  std::vector<const void*> memory;  // what the plan names
  std::uint32_t capacity = 0;       // of the caches: a grown one may lie where an older one was
  std::uint64_t options_revision = 0;
  AttentionSplit split;
  std::optional<DeviceChoice> choice;
  std::shared_ptr<const PlannedPass> pass;
};

// A decode step in flight: reads copy `index` of the state and writes the other.
struct Step {
  std::optional<std::int32_t> token;  // nothing while only the device knows it
  std::uint32_t index = 0;
  std::int64_t position = 0;
  std::optional<DeviceChoice> choice;
  std::shared_ptr<const PlannedPass> pass;
  std::vector<std::shared_ptr<device::Buffer>> memory;  // alive until the ticket is done
  std::unique_ptr<device::Ticket> ticket;
};

// Memory to move before a pass can run, because a cache grew or was shared.
struct CacheCopy {
  View from, to;
};
struct CacheMove {
  std::vector<CacheCopy> copies;
  std::shared_ptr<CacheBuffers> from;
};

// Two copies of the recurrent states, of the token and position slots and of the logits: a step reads one and writes
// the other, so that the state before it stays whole until the step after it begins. Positions past the sequence's end
// hold nothing in the KV cache, so a step that is given up leaves nothing behind there either.
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
  void take_back(const CacheMove& move) { cache_ = move.from; }
  [[nodiscard]] StateViews views(std::uint32_t index, std::int64_t position) const;
  // Everything that views(index) names.
  [[nodiscard]] std::vector<std::shared_ptr<device::Buffer>> memory() const;
  [[nodiscard]] std::uint32_t cache_capacity() const { return static_cast<std::uint32_t>(cache_->capacity); }
  [[nodiscard]] std::uint32_t current() const { return current_; }
  // The step from copy `index` is complete: the sequence now ends at `position`.
  void commit(std::uint32_t index, std::int64_t position);
  void mark_lost() { lost_ = true; }

  void write_slots(std::uint32_t index, std::int32_t token, std::int64_t position, std::int64_t attention_position);
  [[nodiscard]] std::int32_t token_slot(std::uint32_t index) const;
  // Of the position before the sequence's end.
  void read_logits(std::span<float> logits) const;

  // Steps in flight, the oldest first: at most two, and the second does not know its token until the first is done.
  std::deque<Step> steps;
  std::array<StepPlan, 2> plans;
  // Gives up all steps in flight. They still run: wait_for_abandoned() before the host writes a slot.
  void abandon_steps();
  void wait_for_abandoned();

 private:
  GpuSessionState(const GpuSessionState& other);
  struct LayerOffsets {
    std::uint64_t state = 0, conv_state = 0;
  };
  [[nodiscard]] std::uint64_t state_bytes() const;
  [[nodiscard]] std::uint64_t conv_bytes() const;
  [[nodiscard]] std::uint64_t logits_stride() const;
  [[nodiscard]] std::shared_ptr<RecurrentCopy> new_recurrent(bool zero) const;
  [[nodiscard]] std::shared_ptr<CacheBuffers> new_cache(std::int64_t capacity) const;
  [[nodiscard]] std::int64_t grown_capacity(std::int64_t positions) const;
  void ensure_current();
  [[nodiscard]] device::Buffer& cache_buffer(std::size_t layer, bool values) const;
  [[nodiscard]] std::uint64_t head_offset(std::uint64_t head) const;  // bytes, in a cache buffer

  std::shared_ptr<device::Device> device_;
  ModelConfig config_;
  std::int64_t max_context_;
  std::vector<LayerOffsets> offsets_;       // [layers], of GDN layers
  std::vector<std::uint32_t> cache_index_;  // [layers], of attention layers in CacheBuffers
  std::uint64_t recurrent_bytes_ = 0;
  std::uint32_t attention_layers_ = 0;

  std::array<std::shared_ptr<RecurrentCopy>, 2> recurrent_;
  std::shared_ptr<CacheBuffers> cache_;
  std::shared_ptr<device::Buffer> slots_;   // two of kSlotBytes
  std::shared_ptr<device::Buffer> logits_;  // f32 [vocab_size] twice, logits_stride() bytes apart
  std::uint32_t current_ = 0;
  bool lost_ = false;
  std::vector<Step> abandoned_;
};

}  // namespace lily::gpu
