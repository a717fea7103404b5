// gpu/planner.cpp -- hazards on byte ranges, stages, and the dispatches of each stage.
#include "gpu/planner.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace lily::gpu {
namespace {

// The latest stages that wrote and read the bytes of one piece of memory, as ranges that do not overlap.
// Stages count from 1; 0 is "never".
class RangeHistory {
 public:
  // The first stage in which an access to [begin, end) may run.
  [[nodiscard]] std::uint32_t earliest(std::uint64_t begin, std::uint64_t end, bool writes) const {
    std::uint32_t after = 0;
    for (auto range = first_after(begin); range != ranges_.end() && range->first < end; ++range) {
      after = std::max(after, range->second.written);
      if (writes) after = std::max(after, range->second.read);
    }
    return after + 1;
  }

  void record(std::uint64_t begin, std::uint64_t end, bool writes, std::uint32_t stage) {
    split(begin);
    split(end);
    std::uint64_t next = begin;
    for (auto range = ranges_.lower_bound(begin); next < end;) {
      if (range == ranges_.end() || range->first > next) {
        const std::uint64_t gap_end = range == ranges_.end() ? end : std::min(range->first, end);
        range = ranges_.emplace_hint(range, next, Range{gap_end, 0, 0});
      }
      std::uint32_t& latest = writes ? range->second.written : range->second.read;
      latest = std::max(latest, stage);
      next = range->second.end;
      ++range;
    }
  }

 private:
  struct Range {
    std::uint64_t end;
    std::uint32_t written;
    std::uint32_t read;
  };

  // The first range that ends after `begin`.
  [[nodiscard]] std::map<std::uint64_t, Range>::const_iterator first_after(std::uint64_t begin) const {
    auto range = ranges_.upper_bound(begin);
    if (range != ranges_.begin() && std::prev(range)->second.end > begin) --range;
    return range;
  }

  void split(std::uint64_t at) {
    auto range = ranges_.upper_bound(at);
    if (range == ranges_.begin()) return;
    --range;
    if (range->first == at || range->second.end <= at) return;
    Range upper = range->second;
    range->second.end = at;
    ranges_.emplace(at, upper);
  }

  std::map<std::uint64_t, Range> ranges_;
};

// Histories of buffers and of pieces of scratch memory.
class Histories {
 public:
  RangeHistory& of(const View& view) { return view.buffer != nullptr ? buffers_[view.buffer] : scratch_[view.scratch]; }

 private:
  std::unordered_map<const device::Buffer*, RangeHistory> buffers_;
  std::unordered_map<std::uint32_t, RangeHistory> scratch_;
};

Schedule serial_schedule(const Pass& pass) {
  Schedule result;
  for (std::size_t i = 0; i < pass.operations().size(); ++i) result.stage_of.push_back(static_cast<std::uint32_t>(i));
  result.stages = static_cast<std::uint32_t>(result.stage_of.size());
  return result;
}

std::uint64_t ranges_end(const Operand& operand) { return operand.view.offset + operand.view.size; }

device::Dispatch make_dispatch(const Operation& operation, const ScratchLayout& layout, device::Buffer* scratch) {
  device::Dispatch dispatch;
  dispatch.pipeline = operation.pipeline;
  dispatch.buffers.reserve(operation.operands.size());
  for (const Operand& operand : operation.operands) {
    const View& view = operand.view;
    const bool placed = view.buffer == nullptr;
    dispatch.buffers.push_back({.index = operand.index,
                                .buffer = placed ? scratch : view.buffer,
                                .offset = view.offset + (placed ? layout.offsets[view.scratch] : 0),
                                .size = view.size,
                                .written = operand.writes()});
  }
  dispatch.bytes_index = operation.bytes_index;
  dispatch.bytes = operation.bytes;
  dispatch.threadgroups = operation.threadgroups;
  dispatch.threads_per_threadgroup = operation.threads_per_threadgroup;
  return dispatch;
}

void count_bytes(const Operation& operation, PassReport& report) {
  for (const Operand& operand : operation.operands) {
    const auto kind = static_cast<std::size_t>(operand.view.kind);
    report.bytes_read[kind] += operand.read_bytes;
    report.bytes_written[kind] += operand.written_bytes;
  }
}

}  // namespace

Schedule schedule(const Pass& pass, bool concurrent) {
  if (!concurrent) return serial_schedule(pass);
  Schedule result;
  Histories histories;
  std::uint32_t floor = 1;  // the first stage after the latest host work
  std::uint32_t last = 0;
  for (const Operation& operation : pass.operations()) {
    std::uint32_t stage = floor;
    if (operation.pipeline == nullptr) {
      stage = last + 1;
      floor = stage + 1;
    }
    for (const Operand& operand : operation.operands) {
      const RangeHistory& history = histories.of(operand.view);
      stage = std::max(stage, history.earliest(operand.view.offset, ranges_end(operand), operand.writes()));
    }
    for (const Operand& operand : operation.operands) {
      histories.of(operand.view).record(operand.view.offset, ranges_end(operand), operand.writes(), stage);
    }
    last = std::max(last, stage);
    result.stage_of.push_back(stage - 1);
  }
  result.stages = last;
  return result;
}

PlannedPass plan_pass(const Pass& pass, Arena& arena, bool concurrent) {
  const Schedule order = schedule(pass, concurrent);
  const ScratchLayout layout = layout_scratch(pass, order.stage_of);
  PlannedPass planned;
  if (layout.bytes > 0) planned.scratch = arena.reserve(layout.bytes);
  planned.report.scratch_bytes = layout.bytes;
  planned.report.scratch_bytes_unshared = layout.bytes_unshared;

  std::vector<device::Stage> stages(order.stages);
  std::vector<std::function<void()>> host_work(order.stages);
  const auto operations = pass.operations();
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const std::uint32_t stage = order.stage_of[i];
    if (operations[i].pipeline == nullptr) {
      host_work[stage] = operations[i].host;
      continue;
    }
    stages[stage].dispatches.push_back(make_dispatch(operations[i], layout, planned.scratch.get()));
    count_bytes(operations[i], planned.report);
    ++planned.report.kernels;
  }
  planned.submissions.emplace_back();
  for (std::uint32_t stage = 0; stage < order.stages; ++stage) {
    if (host_work[stage]) {
      planned.submissions.back().then = std::move(host_work[stage]);
      planned.submissions.emplace_back();
      continue;
    }
    planned.submissions.back().stages.push_back(std::move(stages[stage]));
  }
  if (planned.submissions.back().stages.empty()) planned.submissions.pop_back();
  for (const Submission& submission : planned.submissions) {
    planned.report.stages += submission.stages.size();
    if (!submission.stages.empty()) planned.report.barriers += submission.stages.size() - 1;
  }
  planned.report.waits = planned.submissions.size();
  return planned;
}

}  // namespace lily::gpu
