// device/metal/submission.cpp -- command buffers in a chain: each waits for the event of the one before.
//
// Buffers are untracked, so Metal knows no order between command buffers; the event is that order. A command buffer
// that fails does not signal it: then its handler does, or everything after would wait for ever.
#include "device/metal/submission.h"

#include <new>
#include <utility>

namespace lily::device::metal {

Submission::~Submission() {
  for (const std::shared_ptr<PassState>& pass : in_flight_) static_cast<void>(pass->wait());
}

std::unique_ptr<Ticket> Submission::submit(std::span<const Stage> stages) {
  const std::scoped_lock lock(mutex_);
  const std::size_t parts = split_->parts(stages);
  const auto pass = std::make_shared<PassState>(parts, health_);
  auto ticket = std::make_unique<PassTicket>(pass);
  if (const std::string obstacle = find_obstacle(stages); !obstacle.empty()) {
    pass->fail(obstacle);
    return ticket;
  }
  std::erase_if(in_flight_, [](const auto& earlier) { return earlier->done(); });
  in_flight_.push_back(pass);
  commit_parts(stages, parts, pass);
  return ticket;
}

std::string Submission::find_obstacle(std::span<const Stage> stages) const {
  if (health_->is_forked()) {
    return "the device was opened before the process forked; load the model in the child";
  }
  if (const std::optional<std::string> lost = health_->lost(); lost.has_value()) {
    return "the GPU was lost by an earlier pass: " + *lost;
  }
  return find_fault(stages, queue_->limits());
}

// Whatever happens here, the pass ends: its caller frees the memory when it has.
void Submission::commit_parts(std::span<const Stage> stages, std::size_t parts,
                              const std::shared_ptr<PassState>& pass) {
  std::size_t committed = 0;
  std::string problem;
  ErrorKind kind = ErrorKind::backend;
  try {
    queue_->prepare();
    const CommandSplit::Shape shape = CommandSplit::shape_of(stages);
    while (committed < parts && problem.empty()) {
      const std::size_t begin = committed * stages.size() / parts;
      const std::size_t end = (committed + 1) * stages.size() / parts;
      problem = commit(stages.subspan(begin, end - begin),
                       "part " + std::to_string(committed + 1) + " of " + std::to_string(parts), shape, pass);
      if (problem.empty()) ++committed;
    }
  } catch (const Error& error) {
    problem = error.what();
    kind = error.kind();
  } catch (const std::bad_alloc&) {
    problem = "no memory";
    kind = ErrorKind::memory_limit;
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (committed < parts) pass->give_up(parts - committed, problem, kind);
}

std::string Submission::commit(std::span<const Stage> stages, std::string label, const CommandSplit::Shape& shape,
                               const std::shared_ptr<PassState>& pass) {
  const std::uint64_t number = committed_ + 1;
  const CommandPart part{.stages = stages, .label = std::move(label), .after = committed_, .number = number};
  CommandEnd ended = [queue = queue_, split = split_, timeline = timeline_, pass, shape,
                      number](const CommandOutcome& outcome) {
    if (outcome.error.has_value()) queue->release(number);
    if (pass->finish_one(outcome, timeline->seconds_of(outcome))) split->note_pass(shape, *pass);
  };
  std::string problem = queue_->commit(part, std::move(ended));
  if (problem.empty()) committed_ = number;
  return problem;
}

}  // namespace lily::device::metal
