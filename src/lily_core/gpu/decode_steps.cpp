// gpu/decode_steps.cpp -- decode steps of the GPU backend: two passes and two token slots in flight (D2).
//
// A step reads one copy of the state and writes the other. While the host waits for a step, the next one is already
// submitted: it takes its token from the slot that the first writes. When the first step's token ends the generation,
// the second is given up: the copy it read is the sequence's state, and nobody looks at what it wrote.
#include <algorithm>
#include <string>
#include <utility>

#include "engine/error.h"
#include "gpu/gpu_backend.h"

namespace lily::gpu {

void GpuBackend::begin_step(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) begin_row(row);
}

void GpuBackend::step(std::span<StepRow> rows) {
  for (StepRow& row : rows) step_row(row);
}

void GpuBackend::begin_row(const StepRow& row) {
  auto& state = static_cast<GpuSessionState&>(*row.state);
  if (!state.steps.empty() && state.steps.front().token == row.token) return;
  state.abandon_steps();
  state.wait_for_abandoned();
  submit_step(state, row.token, state.current(), state.position(), row.choice);
}

void GpuBackend::step_row(StepRow& row) {
  auto& state = static_cast<GpuSessionState&>(*row.state);
  begin_row(row);
  const std::uint32_t index = state.steps.front().index;
  const std::int64_t next = state.steps.front().position + 1;
  const bool picks = row.choice.has_value() && state.steps.front().choice == row.choice;
  if (picks && options_.token_handoff && next < max_context_) {
    submit_step(state, std::nullopt, 1 - index, next, row.choice);
  }
  finish_step(state);
  if (!row.logits.empty()) state.read_logits(row.logits);
  const std::int32_t picked = picks ? state.token_slot(1 - index) : -1;
  if (picked < 0) {  // nobody chose, or the logits are not finite: the caller looks at them
    state.abandon_steps();
    row.picked.reset();
    return;
  }
  if (!state.steps.empty()) state.steps.front().token = picked;
  row.picked = picked;
}

void GpuBackend::read_logits(const SessionState& state, std::span<float> logits) {
  static_cast<const GpuSessionState&>(state).read_logits(logits);
}

// Waits for the oldest step and makes what it wrote the state of the sequence.
void GpuBackend::finish_step(GpuSessionState& state) {
  const device::PassResult result = state.steps.front().ticket->wait();
  ++counters_.waits;
  const std::uint32_t index = state.steps.front().index;
  const std::int64_t position = state.steps.front().position;
  if (!result.error.empty()) {
    // The step behind, if it was submitted, writes over the state before this one.
    if (state.steps.size() > 1) state.mark_lost();
    state.abandon_steps();
    state.wait_for_abandoned();
    throw Error(result.kind, "the " + device_->name() + " device could not complete a decode step: " + result.error);
  }
  counters_.decode_seconds += result.gpu_seconds;
  state.steps.pop_front();
  state.commit(index, position + 1);
}

void GpuBackend::submit_step(GpuSessionState& state, std::optional<std::int32_t> token, std::uint32_t index,
                             std::int64_t position, const std::optional<DeviceChoice>& choice) {
  move_caches(state, state.prepare(position, position + 1, index));
  if (token) state.write_slots(index, *token, position, position);
  Step step{.token = token,
            .index = index,
            .position = position,
            .choice = choice,
            .pass = plan_step(state, index, position, choice),
            .memory = state.memory(),
            .ticket = nullptr};
  if (step.pass->scratch != nullptr) step.memory.push_back(step.pass->scratch);
  step.ticket = device_->submit(step.pass->submissions.front().stages);
  ++counters_.submissions;
  state.steps.push_back(std::move(step));
}

// A step's pass differs from the one before the last only when memory grew or the context crossed a split.
std::shared_ptr<const PlannedPass> GpuBackend::plan_step(GpuSessionState& state, std::uint32_t index,
                                                         std::int64_t position,
                                                         const std::optional<DeviceChoice>& choice) {
  std::vector<const void*> memory;
  for (const auto& buffer : state.memory()) memory.push_back(buffer.get());
  memory.push_back(arena_.buffer().get());
  const AttentionSplit split = attention_split(config_, options_, position);
  StepPlan& cached = state.plans[index];
  if (cached.pass != nullptr && cached.options_revision == options_revision_ && cached.memory == memory &&
      cached.capacity == state.cache_capacity() && cached.split == split && cached.choice == choice) {
    counters_.decode = cached.pass->report;
    return cached.pass;
  }
  Pass pass;
  Encoder encoder(*device_, pass, options_, static_cast<float>(config_.rms_norm_eps));
  encode_decode(encoder, config_, weights_, state.views(index, position), choice);
  auto planned = std::make_shared<PlannedPass>(plan_pass(pass, arena_, options_.concurrent_stages));
  memory.back() = arena_.buffer().get();
  cached = {.memory = std::move(memory),
            .capacity = state.cache_capacity(),
            .options_revision = options_revision_,
            .split = split,
            .choice = choice,
            .pass = planned};
  counters_.decode = planned->report;
  return planned;
}

}  // namespace lily::gpu
