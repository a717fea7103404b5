// tests/cpp/test_metal_commands.cpp -- what a pass becomes: commands, their faults, and its parts.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "device/metal/command_split.h"
#include "device/metal/pass_commands.h"
#include "named_pipeline.h"
#include "text.h"

namespace lily::device::metal {
namespace {

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::uint64_t size, std::string label) : bytes_(size), label_(std::move(label)) {}
  [[nodiscard]] std::uint64_t size() const override { return bytes_.size(); }
  [[nodiscard]] std::byte* contents() override { return bytes_.data(); }
  void read(std::uint64_t /*offset*/, std::span<std::byte> /*out*/) override {}
  void write(std::uint64_t /*offset*/, std::span<const std::byte> /*values*/) override {}
  void clear() override {}
  [[nodiscard]] const std::string& label() const override { return label_; }

 private:
  std::vector<std::byte> bytes_;
  std::string label_;
};

// Writes down what it is told.
class Notes final : public CommandSink {
 public:
  void set_pipeline(const Pipeline& pipeline) override { add("pipeline " + pipeline.name()); }
  void set_buffer(std::uint32_t index, Buffer& buffer, std::uint64_t offset) override {
    add("buffer " + std::to_string(index) + " " + buffer.label() + "+" + std::to_string(offset));
  }
  void set_offset(std::uint32_t index, std::uint64_t offset) override {
    add("offset " + std::to_string(index) + " +" + std::to_string(offset));
  }
  void set_bytes(std::uint32_t index, std::span<const std::byte> bytes) override {
    add("bytes " + std::to_string(index) + " " + std::to_string(bytes.size()));
  }
  void set_threadgroup_bytes(std::uint32_t bytes) override { add("threadgroup " + std::to_string(bytes)); }
  void dispatch(Size3 threadgroups, std::uint32_t threads) override {
    add("dispatch " + std::to_string(threadgroups.x) + " x " + std::to_string(threads));
  }
  void barrier() override { add("barrier"); }
  std::vector<std::string> lines;

 private:
  void add(std::string line) { lines.push_back(std::move(line)); }
};

Dispatch launch(const Pipeline& pipeline, std::vector<BufferBinding> buffers, std::uint32_t groups = 1) {
  Dispatch dispatch;
  dispatch.pipeline = &pipeline;
  dispatch.buffers = std::move(buffers);
  dispatch.threadgroups = {groups, 1, 1};
  dispatch.threads_per_threadgroup = 64;
  return dispatch;
}

TEST_CASE("commands of a pass") {
  HostBuffer a(256, "a");
  HostBuffer b(256, "b");
  const NamedPipeline f("f");
  const NamedPipeline g("g");
  Dispatch with_bytes = launch(f, {{0, &a, 0, 64, false}, {1, &b, 16, 64, true}}, 3);
  with_bytes.bytes_index = 2;
  with_bytes.bytes.resize(8);
  Dispatch reuses_slot = launch(g, {{0, &a, 32, 64, false}, {2, &a, 0, 64, false}}, 4);
  reuses_slot.threadgroup_bytes = 48;
  const std::vector<Stage> stages = {{{launch(f, {}, 0)}},  // no threads: no barrier behind it
                                     {{with_bytes, launch(f, {{1, &b, 16, 64, true}}, 5)}},
                                     {},
                                     {{reuses_slot, with_bytes}},
                                     {{launch(f, {{2, &a, 0, 64, false}})}}};  // where bytes were a moment ago
  Notes notes;
  encode_stages(stages, notes);
  const std::vector<std::string> expected = {"pipeline f",      "buffer 0 a+0",    "buffer 1 b+16",  "bytes 2 8",
                                             "dispatch 3 x 64", "dispatch 5 x 64", "barrier",        "pipeline g",
                                             "offset 0 +32",    "buffer 2 a+0",    "threadgroup 48", "dispatch 4 x 64",
                                             "pipeline f",      "offset 0 +0",     "bytes 2 8",      "threadgroup 0",
                                             "dispatch 3 x 64", "barrier",         "buffer 2 a+0",   "dispatch 1 x 64"};
  std::string all;
  for (const std::string& line : notes.lines) all += line + "; ";
  REQUIRE_MESSAGE(notes.lines == expected, "commands: ", all);
}

TEST_CASE("faults are found") {
  HostBuffer a(256, "codes");
  const NamedPipeline f("f", 128);
  const EncoderLimits limits;
  const auto fault = [&](const std::function<void(Dispatch&)>& change) {
    Dispatch dispatch = launch(f, {{0, &a, 0, 256, false}});
    change(dispatch);
    const std::vector<Stage> stages = {{{launch(f, {})}}, {{dispatch}}};
    return find_fault(stages, limits);
  };
  REQUIRE_MESSAGE(fault([](Dispatch&) {}).empty(), "nothing is wrong");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.buffers[0].offset = 4; }), "\"codes\" of 256 bytes"), "range");
  REQUIRE_MESSAGE(!fault([](Dispatch& d) { d.buffers[0].size = ~std::uint64_t{0}; }).empty(),
                  "range that wraps around");
  const auto binding_fault = [&](std::uint64_t offset, std::uint64_t size) {
    return fault([&](Dispatch& d) { d.buffers[0] = {0, d.buffers[0].buffer, offset, size, false}; });
  };
  REQUIRE_MESSAGE((binding_fault(4, 252).empty() && binding_fault(256, 0).empty()), "ranges that end with the buffer");
  for (const std::uint64_t end : {0ULL, 4ULL}) {
    REQUIRE_MESSAGE(!binding_fault(8, end - 8).empty(), "a range whose end wraps around to ", std::to_string(end));
  }
  REQUIRE_MESSAGE((!binding_fault(4, 253).empty() && !binding_fault(260, 0).empty()), "ranges that end behind it");
  REQUIRE_MESSAGE(
      contains(fault([](Dispatch& d) { d.buffers[0] = {0, d.buffers[0].buffer, 2, 4, false}; }), "multiple of 4"),
      "offset");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.buffers[0].buffer = nullptr; }), "no buffer"), "null");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.buffers[0].index = 31; }), "no such slot"), "slot");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.threads_per_threadgroup = 160; }), "more than the 128"),
                  "threads");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.threads_per_threadgroup = 48; }), "multiple of 32"),
                  "whole simdgroups");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.bytes.resize(5000); }), "5000"), "argument bytes");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.threadgroup_bytes = 40000; }), "40000"), "threadgroup memory");
  REQUIRE_MESSAGE(contains(fault([](Dispatch& d) { d.pipeline = nullptr; }), "no kernel"), "pipeline");
}

TEST_CASE("split by time") {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> decode(555, Stage{{launch(f, {}, 10)}});
  const std::vector<Stage> prompt(300, Stage{{launch(f, {}, 5000)}});
  REQUIRE_MESSAGE(split.parts(decode) == 9, "an unknown pass goes in parts of 64 stages");
  split.note(decode, 0.012);
  REQUIRE_MESSAGE(split.parts(decode) == 1, "a short pass is one command buffer");
  REQUIRE_MESSAGE(split.parts(prompt) == 5, "another shape is still unknown");
  split.note(prompt, 0.75);
  REQUIRE_MESSAGE(split.parts(prompt) == 8, "a long pass goes in parts of a tenth of a second");
  split.note(prompt, 1e9);
  REQUIRE_MESSAGE(split.parts(prompt) == 300, "a stage at least");
  const std::vector<Stage> short_pass(3, Stage{{launch(f, {})}});
  REQUIRE_MESSAGE(
      (split.parts(std::span(short_pass).first(1)) == 1 && split.parts(std::span(short_pass).first(0)) == 1),
      "one part");
}

// What a pass does is told by its stages, its dispatches and its threads; each of them alone makes another shape.
TEST_CASE("shapes of passes") {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> known(600, Stage{{launch(f, {}, 16)}});
  split.note(known, 0.01);
  REQUIRE_MESSAGE(split.parts(known) == 1, "known and short");
  REQUIRE_MESSAGE(split.parts(std::vector<Stage>(600, Stage{{launch(f, {}, 32)}})) == 10,
                  "more threads are another pass");
  std::vector<Stage> more_dispatches = known;
  for (Stage& stage : more_dispatches) stage.dispatches = {launch(f, {}, 8), launch(f, {}, 8)};
  REQUIRE_MESSAGE(split.parts(more_dispatches) == 10, "as many threads in more dispatches are another pass");
  REQUIRE_MESSAGE(split.parts(std::vector<Stage>(300, Stage{{launch(f, {}, 32)}})) == 5,
                  "as many threads in fewer stages, too");
}

TEST_CASE("seconds that say nothing are not noted") {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> pass(600, Stage{{launch(f, {}, 16)}});
  for (const double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    split.note(pass, seconds);
    REQUIRE_MESSAGE(split.parts(pass) == 10, "still unknown after ", std::to_string(seconds));
  }
  split.note(pass, 0.25);
  split.note(pass, 0.0);
  REQUIRE_MESSAGE(split.parts(pass) == 3, "nor do they replace what is known");
}

// Shapes come with every length of a context: what is kept has an end.
TEST_CASE("shapes are forgotten") {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> first(600, Stage{{launch(f, {}, 16)}});
  split.note(first, 0.01);
  for (std::size_t dispatches = 1; dispatches < 4096; ++dispatches) split.note({{1, dispatches}, 1}, 0.01);
  REQUIRE_MESSAGE(split.parts(first) == 1, "4,096 shapes are kept");
  split.note({{2, 1}, 1}, 0.01);
  REQUIRE_MESSAGE(split.parts(first) == 10, "one more, and all are measured anew");
}

}  // namespace
}  // namespace lily::device::metal
