// gpu/decode_steps.cpp -- decode steps of the GPU backend: two passes and two token slots in flight (D2).
//
// A step reads one copy of the state and writes the other. While the host waits for a step, the next one is already
// submitted: it takes its token from the slot that the first writes. When the first step's token ends the generation,
// the second is abandoned: the copy it read is the sequence's state, and what it wrote is ignored.
#include "gpu/decode_steps.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace lily::gpu {

void StepsInFlight::abandon(GpuSessionState& state) {
  if (steps.empty()) return;
  state.give_up(steps.front().position, steps.back().position + 1);
  for (Step& step : steps) abandoned_.push_back(std::move(step));
  steps.clear();
}

void StepsInFlight::wait_for_abandoned() {
  for (Step& step : abandoned_) step.ticket->wait();  // whether it failed matters to no one
  abandoned_.clear();
}

void DecodeSteps::begin(const StepRow& row) {
  auto& state = static_cast<GpuSessionState&>(*row.state);
  StepsInFlight& flight = state.steps();
  if (!flight.steps.empty() && flight.steps.front().token == row.token) return;
  flight.give_up(state);
  submit(state, row.token, state.current(), state.position(), row.choice);
}

void DecodeSteps::step(StepRow& row) {
  auto& state = static_cast<GpuSessionState&>(*row.state);
  begin(row);
  StepsInFlight& flight = state.steps();
  const std::uint32_t index = flight.steps.front().index;
  const std::int64_t next = flight.steps.front().position + 1;
  const bool picks = row.choice.has_value() && flight.steps.front().choice == row.choice;
  if (picks && runner_.options().token_handoff && next < max_context_) {
    submit(state, std::nullopt, 1 - index, next, row.choice);
  }
  finish(state);
  if (!row.logits.empty()) state.read_logits(row.logits);
  const std::int32_t picked = picks ? state.token_slot(1 - index) : -1;
  if (picked < 0) {  // nobody chose, or the logits are not finite: the caller decides
    flight.abandon(state);
    row.picked.reset();
    return;
  }
  if (!flight.steps.empty()) flight.steps.front().token = picked;
  row.picked = picked;
}

// Waits for the oldest step and makes what it wrote the state of the sequence.
void DecodeSteps::finish(GpuSessionState& state) {
  StepsInFlight& flight = state.steps();
  const device::PassResult result = flight.steps.front().ticket->wait();
  ++runner_.counters().waits;
  const std::uint32_t index = flight.steps.front().index;
  const std::int64_t position = flight.steps.front().position;
  if (!result.error.empty()) {
    // The step behind, if it was submitted, writes over the state before this one.
    if (flight.steps.size() > 1) state.mark_lost();
    flight.give_up(state);
    throw Error(result.kind,
                "the " + runner_.device().name() + " device could not complete a decode step: " + result.error);
  }
  runner_.counters().decode_seconds += result.gpu_seconds;
  flight.steps.pop_front();
  state.commit(index, position + 1);
}

void DecodeSteps::submit(GpuSessionState& state, std::optional<std::int32_t> token, std::uint32_t index,
                         std::int64_t position, const std::optional<DeviceChoice>& choice) {
  runner_.move_caches(state, state.prepare(position, position + 1, index));
  if (token) state.write_slots(index, *token, position, position);
  Step step{.token = token,
            .index = index,
            .position = position,
            .choice = choice,
            .pass = plan(state, index, position, choice),
            .memory = state.memory(),
            .ticket = nullptr};
  if (step.pass->scratch != nullptr) step.memory.push_back(step.pass->scratch);
  step.ticket = runner_.device().submit(step.pass->submissions.front().stages);
  ++runner_.counters().submissions;
  state.steps().steps.push_back(std::move(step));
}

// A step's pass differs from the one before the last only when memory grew or the context crossed a split.
std::shared_ptr<const PlannedPass> DecodeSteps::plan(GpuSessionState& state, std::uint32_t index, std::int64_t position,
                                                     const std::optional<DeviceChoice>& choice) {
  std::vector<const void*> memory;
  for (const auto& buffer : state.memory()) memory.push_back(buffer.get());
  memory.push_back(runner_.scratch().get());
  const AttentionSplit split = attention_split(config_, runner_.options(), position);
  StepPlan& cached = state.steps().plans[index];
  if (cached.pass != nullptr && cached.options_revision == runner_.options_revision() && cached.memory == memory &&
      cached.capacity == state.cache_capacity() && cached.split == split && cached.choice == choice) {
    runner_.counters().decode = cached.pass->report;
    return cached.pass;
  }
  Pass pass;
  Encoder encoder(runner_.device(), pass, runner_.options(), static_cast<float>(config_.rms_norm_eps));
  encode_decode(encoder, config_, weights_, state.views(index, position), choice);
  auto planned = std::make_shared<PlannedPass>(runner_.plan(pass));
  memory.back() = runner_.scratch().get();
  cached = {.memory = std::move(memory),
            .capacity = state.cache_capacity(),
            .options_revision = runner_.options_revision(),
            .split = split,
            .choice = choice,
            .pass = planned};
  runner_.counters().decode = planned->report;
  return planned;
}

}  // namespace lily::gpu
