// tests/cpp/test_metal_device.cpp -- the parts of the Metal device that are plain C++: sources, commands, errors,
// waiting, memory, heartbeat, and the verdict on tensor operations.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/metal/command_error.h"
#include "device/metal/command_split.h"
#include "device/metal/heartbeat.h"
#include "device/metal/memory_budget.h"
#include "device/metal/pass_commands.h"
#include "device/metal/pass_state.h"
#include "device/metal/source_bundle.h"
#include "device/metal/tensor_verdict.h"
#include "named_tests.h"

namespace lily::device::metal {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

template <class Run>
std::string error_of(ErrorKind kind, Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    expect(error.kind() == kind, std::string("an error of another kind: ") + error.what());
    return error.what();
  }
  throw std::runtime_error("no error");
}

// A folder of files that goes with the test.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("lily-metal-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  void write(const std::string& name, const std::string& text) const { std::ofstream(path_ / name) << text; }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// -- sources ---------------------------------------------------------------------------------------------------------

void test_sources_are_joined() {
  const Folder folder;
  folder.write("base.h", "#pragma once\n#include <metal_stdlib>\nenum { kBitsIndex = 0, kWideIndex = 7 };\n");
  folder.write("middle.h", "#pragma once\n#include \"base.h\"\nint middle();\n");
  folder.write("one.metal",
               "// a comment: [[kernel]] void ghost(\n#include \"middle.h\"\n#include \"base.h\"\n"
               "constant int kBits [[function_constant(kBitsIndex)]];\n"
               "constant bool kWide [[function_constant(kWideIndex)]];\n"
               "[[kernel, max_total_threads_per_threadgroup(64)]] void plain(device float* x [[buffer(0)]]) {}\n"
               "template <typename T>\n[[kernel]] void of_type(device T* x [[buffer(0)]]) {}\n"
               "template [[host_name(\"of_float\")]] [[kernel]] decltype(of_type<float>) of_type<float>;\n");
  folder.write("two_tensor.metal", "[[kernel]] void other() {}\n");
  const SourceBundle bundle(folder.path());
  expect(bundle.libraries().size() == 2, "two libraries");
  const LibrarySource& one = bundle.libraries()[0];
  expect(one.name == "one" && !one.uses_tensors() && bundle.libraries()[1].uses_tensors(), "names of libraries");
  expect(one.kernels == std::vector<std::string>({"of_float", "plain"}),
         "kernels by host name, no templates, no comments");
  expect(one.constants.at(0) == ConstantType::signed_integer && one.constants.at(7) == ConstantType::boolean,
         "types of constants");
  expect(bundle.library_of("other") == 1 && bundle.library_of("plain") == 0, "libraries of kernels");
  expect(one.text.find("kWideIndex = 7") == one.text.rfind("kWideIndex = 7"), "a header comes once");
  expect(contains(one.text, "#include <metal_stdlib>") && !contains(one.text, "#pragma once"), "system headers stay");
  // Line 3 of one.metal is the second #include, so what follows the joined header says line 3.
  expect(contains(one.text, "int middle();\n#line 3 \"one.metal\"\n"), "lines go on after a header");
  folder.write("base.h", "#pragma once\nenum { kBitsIndex = 0, kWideIndex = 8 };\n");
  expect(SourceBundle(folder.path()).fingerprint() != bundle.fingerprint(), "other sources, another fingerprint");
}

void test_wrong_sources_are_refused() {
  const Folder folder;
  expect(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), folder.path().string()),
         "an empty folder is named");
  folder.write("a.metal", "#include \"absent.h\"\n");
  expect(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "absent.h"),
         "missing header");
  folder.write("b.h", "#pragma once\n");
  folder.write("a.metal", "#ifdef X\n#include \"b.h\"\n#endif\n#include \"b.h\"\n");
  expect(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "b.h"), "conditions");
  folder.write("a.metal", "[[kernel]] void same() {}\n");
  folder.write("b.metal", "[[kernel]] void same() {}\n");
  expect(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "same"), "equal names");
  folder.write("b.metal", "constant int k [[function_constant(kNowhere)]];\n[[kernel]] void b() {}\n");
  expect(contains(error_of(ErrorKind::backend, [&] { SourceBundle bundle(folder.path()); }), "kNowhere"), "constants");
}

// The sources that ship: what the engine launches is found, and where it belongs.
void test_shipped_sources() {
  const fs::path metal = fs::path(__FILE__).parent_path() / ".." / ".." / "metal";
  const SourceBundle bundle(metal);
  for (const char* kernel : {"embed_rows", "gemv_segments", "gemm_affine_m64", "gdn_step", "attention_prefill"}) {
    expect(!bundle.libraries()[bundle.library_of(kernel)].uses_tensors(), std::string(kernel) + " is a plain kernel");
  }
  for (const char* kernel : {"gemm_affine_tensor_m32", "gemm_affine_tensor_m64"}) {
    const LibrarySource& library = bundle.libraries()[bundle.library_of(kernel)];
    expect(library.uses_tensors() && library.constants.size() == 4,
           std::string(kernel) + " is in a library of its own");
  }
  for (const LibrarySource& library : bundle.libraries()) {
    expect(!library.kernels.empty(), library.name + " has kernels");
    expect(!contains(library.text, "#include \""), library.name + " needs no file");
  }
}

// -- commands --------------------------------------------------------------------------------------------------------

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

class NamedPipeline final : public Pipeline {
 public:
  explicit NamedPipeline(std::string name, std::uint32_t threads = 256) : name_(std::move(name)), threads_(threads) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return threads_; }
  [[nodiscard]] std::span<const SlotUse> slots() const override { return {}; }

 private:
  std::string name_;
  std::uint32_t threads_;
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

void test_commands_of_a_pass() {
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
  expect(notes.lines == expected, "commands: " + all);
}

void test_faults_are_found() {
  HostBuffer a(256, "codes");
  const NamedPipeline f("f", 128);
  const EncoderLimits limits;
  const auto fault = [&](const std::function<void(Dispatch&)>& change) {
    Dispatch dispatch = launch(f, {{0, &a, 0, 256, false}});
    change(dispatch);
    const std::vector<Stage> stages = {{{launch(f, {})}}, {{dispatch}}};
    return find_fault(stages, limits);
  };
  expect(fault([](Dispatch&) {}).empty(), "nothing is wrong");
  expect(contains(fault([](Dispatch& d) { d.buffers[0].offset = 4; }), "\"codes\" of 256 bytes"), "range");
  expect(!fault([](Dispatch& d) { d.buffers[0].size = ~std::uint64_t{0}; }).empty(), "range that wraps around");
  expect(contains(fault([](Dispatch& d) { d.buffers[0] = {0, d.buffers[0].buffer, 2, 4, false}; }), "multiple of 4"),
         "offset");
  expect(contains(fault([](Dispatch& d) { d.buffers[0].buffer = nullptr; }), "no buffer"), "null");
  expect(contains(fault([](Dispatch& d) { d.buffers[0].index = 31; }), "no such slot"), "slot");
  expect(contains(fault([](Dispatch& d) { d.threads_per_threadgroup = 160; }), "more than the 128"), "threads");
  expect(contains(fault([](Dispatch& d) { d.threads_per_threadgroup = 48; }), "multiple of 32"), "whole simdgroups");
  expect(contains(fault([](Dispatch& d) { d.bytes.resize(5000); }), "5000"), "argument bytes");
  expect(contains(fault([](Dispatch& d) { d.threadgroup_bytes = 40000; }), "40000"), "threadgroup memory");
  expect(contains(fault([](Dispatch& d) { d.pipeline = nullptr; }), "no kernel"), "pipeline");
}

void test_split_by_time() {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> decode(555, Stage{{launch(f, {}, 10)}});
  const std::vector<Stage> prompt(300, Stage{{launch(f, {}, 5000)}});
  expect(split.parts(decode) == 9, "an unknown pass goes in parts of 64 stages");
  split.note(decode, 0.012);
  expect(split.parts(decode) == 1, "a short pass is one command buffer");
  expect(split.parts(prompt) == 5, "another shape is still unknown");
  split.note(prompt, 0.75);
  expect(split.parts(prompt) == 8, "a long pass goes in parts of a tenth of a second");
  split.note(prompt, 1e9);
  expect(split.parts(prompt) == 300, "a stage at least");
  const std::vector<Stage> short_pass(3, Stage{{launch(f, {})}});
  expect(split.parts(std::span(short_pass).first(1)) == 1 && split.parts(std::span(short_pass).first(0)) == 1,
         "one part");
}

// What a pass does is told by its stages, its dispatches and its threads; each of them alone makes another shape.
void test_shapes_of_passes() {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> known(600, Stage{{launch(f, {}, 16)}});
  split.note(known, 0.01);
  expect(split.parts(known) == 1, "known and short");
  expect(split.parts(std::vector<Stage>(600, Stage{{launch(f, {}, 32)}})) == 10, "more threads are another pass");
  std::vector<Stage> more_dispatches = known;
  for (Stage& stage : more_dispatches) stage.dispatches = {launch(f, {}, 8), launch(f, {}, 8)};
  expect(split.parts(more_dispatches) == 10, "as many threads in more dispatches are another pass");
  expect(split.parts(std::vector<Stage>(300, Stage{{launch(f, {}, 32)}})) == 5, "as many threads in fewer stages, too");
}

void test_seconds_that_say_nothing_are_not_noted() {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> pass(600, Stage{{launch(f, {}, 16)}});
  for (const double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    split.note(pass, seconds);
    expect(split.parts(pass) == 10, "still unknown after " + std::to_string(seconds));
  }
  split.note(pass, 0.25);
  split.note(pass, 0.0);
  expect(split.parts(pass) == 3, "nor do they replace what is known");
}

// Shapes come with every length of a context: what is kept has an end.
void test_shapes_are_forgotten() {
  const NamedPipeline f("f");
  CommandSplit split;
  const std::vector<Stage> first(600, Stage{{launch(f, {}, 16)}});
  split.note(first, 0.01);
  for (std::size_t dispatches = 1; dispatches < 4096; ++dispatches) split.note({{1, dispatches}, 1}, 0.01);
  expect(split.parts(first) == 1, "4,096 shapes are kept");
  split.note({{2, 1}, 1}, 0.01);
  expect(split.parts(first) == 10, "one more, and all are measured anew");
}

// -- errors and waiting ----------------------------------------------------------------------------------------------

CommandError error_with(std::int64_t code, const std::string& description = "text") {
  return {.of_command_buffer = true, .code = code, .description = description, .part = "part 2 of 3"};
}

void test_errors_have_remedies() {
  expect(contains(describe(error_with(2)), "pass_seconds") && contains(describe(error_with(2)), "part 2 of 3"),
         "timeout");
  expect(contains(describe(error_with(8)), "iogpu.wired_limit_mb"), "out of memory");
  expect(contains(describe(error_with(14)), "display"), "interactivity by its code");
  const std::string driver = "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)";
  expect(contains(describe(error_with(1, driver)), "display") && contains(describe(error_with(1, driver)), driver),
         "interactivity by the driver's text, which is kept");
  expect(contains(describe(error_with(4)), "restart the process"), "access revoked");
  const auto by_text = [](const char* name) {
    return describe(error_with(1, std::string("kIOGPUCommandBuffer") + name));
  };
  expect(contains(by_text("CallbackErrorSubmissionsIgnored"), "restart the process"), "access revoked by the text");
  expect(contains(by_text("CallbackErrorInnocentVictim"), "try again"), "another program's error");
  expect(contains(by_text("CallbackErrorPageFault"), "outside its buffers"), "page fault");
  expect(kind_of(error_with(8)) == ErrorKind::memory_limit, "out of memory is a memory error");
  expect(kind_of(error_with(1, "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)")) == ErrorKind::memory_limit,
         "by the driver's text as well");
  expect(kind_of(error_with(2)) == ErrorKind::backend, "the others are the device's");
  CommandError foreign = error_with(2);
  foreign.of_command_buffer = false;
  expect(!contains(describe(foreign), "pass_seconds"), "another domain's numbers mean other things");
  expect(loses_device(error_with(11)) && loses_device(error_with(4)), "lost devices");
  expect(!loses_device(error_with(2)) && !loses_device(error_with(8)) && !loses_device(foreign), "kept devices");
}

void test_waiters_are_released() {
  const auto health = std::make_shared<DeviceHealth>();
  const auto pass = std::make_shared<PassState>(3, health);
  std::atomic<int> released = 0;
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.emplace_back([&] {
      PassTicket ticket(pass);
      const PassResult result = ticket.wait();
      if (ticket.done() && contains(result.error, "ran too long") && result.gpu_seconds == 0.75) ++released;
    });
  }
  expect(!pass->finish_one({.gpu_seconds = 0.25, .error = std::nullopt}, 0.25), "the first of three");
  expect(!pass->finish_one({.gpu_seconds = 0.0, .error = error_with(2)}, 0.0), "the second of three");
  expect(!pass->done(), "two of three");
  expect(pass->finish_one({.gpu_seconds = 0.5, .error = error_with(8)}, 0.5), "the last");  // the first error is told
  for (std::jthread& waiter : waiters) waiter.join();
  expect(released == 4 && !health->lost().has_value(), "all waiters have the first error; the device is not lost");
}

void test_lost_device_and_failed_pass() {
  const auto health = std::make_shared<DeviceHealth>();
  PassState pass(1, health);
  pass.finish_one({.gpu_seconds = 0.0, .error = error_with(11, "gone")}, 0.0);
  expect(health->lost().has_value() && contains(*health->lost(), "gone"), "the reason is kept");
  health->lose("later");
  expect(contains(*health->lost(), "gone"), "the first reason stays");
  PassState refused(5, health);
  refused.fail("refused");
  expect(refused.done() && refused.wait().error == "refused", "a refused pass waits for nothing");
  refused.finish_one({.gpu_seconds = 1.0, .error = std::nullopt}, 1.0);
  expect(refused.done() && refused.wait().error == "refused", "a late report changes nothing");
}

// -- memory and heartbeat --------------------------------------------------------------------------------------------

void test_memory_budget() {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 10ULL << 30, .buffer = 6ULL << 30});
  const BudgetShare weights(budget, 5ULL << 30, true, "weights");
  {
    const BudgetShare cache(budget, 4ULL << 30, false, "cache");
    expect(budget->allocated() == 4ULL << 30 && budget->wrapped() == 5ULL << 30, "counts");
    const std::string text =
        error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 3ULL << 29, false, "scratch"); });
    expect(contains(text, "\"scratch\" needs 1.50 GiB besides the 9.00 GiB") && contains(text, "10.00 GiB"), text);
    expect(contains(text, "iogpu.wired_limit_mb=11776"), text);  // 10.5 GiB and one more
  }
  expect(budget->allocated() == 0, "released");
  const BudgetShare fits(budget, 5ULL << 30, false, "cache");
  const std::string text =
      error_of(ErrorKind::memory_limit, [&] { const BudgetShare big(budget, 7ULL << 30, true, "shard"); });
  expect(contains(text, "one buffer of Metal holds at most 6.00 GiB") && contains(text, "shard"), text);
  // The remedy must be one that the machine's memory has room for, with 4 GiB for everything else.
  expect(contains(wired_limit_remedy(10ULL << 30, 16ULL << 30), "iogpu.wired_limit_mb=11264"), "a limit that fits");
  expect(contains(wired_limit_remedy(11ULL << 30, 16ULL << 30), "wired_limit_mb=12288"), "the largest that fits");
  expect(wired_limit_remedy((11ULL << 30) + 1, 16ULL << 30).empty(), "no limit beyond the machine's memory");
}

// Exactly the limit still fits; one byte more does not. A refusal that is too early costs memory that there is.
void test_limits_of_the_budget_are_exact() {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 1000, .buffer = 600, .machine = 0});
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 601, false, "one byte too many"); });
  const BudgetShare largest(budget, 600, false, "largest");
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 401, true, "one byte too many"); });
  expect(budget->allocated() == 600 && budget->wrapped() == 0, "what was refused is not counted");
  const BudgetShare rest(budget, 400, true, "rest");
  error_of(ErrorKind::memory_limit, [&] { const BudgetShare more(budget, 1, false, "one byte too many"); });
  const BudgetShare nothing(budget, 0, false, "nothing");
}

void test_gibibytes_are_rounded() {
  constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;
  const auto thousandths = [](std::uint64_t count) { return gibibytes(count * kGibibyte / 1000); };
  expect(thousandths(1996) == "2.00 GiB" && thousandths(1994) == "1.99 GiB", thousandths(1996) + thousandths(1994));
  expect(thousandths(1044) == "1.04 GiB" && thousandths(1046) == "1.05 GiB", thousandths(1044) + thousandths(1046));
  expect(gibibytes(0) == "0.00 GiB" && gibibytes(kGibibyte) == "1.00 GiB", "whole numbers");
}

// Whoever adds without the lock loses some of it: thousands of short turns end with a wrong count.
void test_nothing_is_lost_between_threads() {
  MemoryBudget budget(MemoryLimits{.working_set = 0, .buffer = 0, .machine = 0});
  constexpr std::uint64_t kRounds = 200'000;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (std::uint64_t round = 0; round < kRounds; ++round) {
          budget.take_allocated(3, "turn");
          budget.take_wrapped(5, "turn");
          budget.release_allocated(2);
          budget.release_wrapped(4);
        }
      });
    }
  }
  expect(budget.allocated() == 4 * kRounds && budget.wrapped() == 4 * kRounds,
         std::to_string(budget.allocated()) + " and " + std::to_string(budget.wrapped()));
}

void test_budget_of_many_threads() {
  const auto budget = std::make_shared<MemoryBudget>(MemoryLimits{.working_set = 100, .buffer = 0, .machine = 0});
  std::atomic<int> refused = 0;
  std::atomic<int> held = 0;  // by shares while they exist, so never more than the budget has given
  std::atomic<bool> exceeded = false;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        try {
          const BudgetShare share(budget, 30, round % 2 == 0, "share");
          if ((held += 30) > 100) exceeded = true;
          std::this_thread::yield();
          held -= 30;
        } catch (const Error&) {
          ++refused;
        }
      }
    });
  }
  for (std::jthread& thread : threads) thread.join();
  expect(!exceeded && budget->allocated() == 0 && budget->wrapped() == 0, "never more than there is");
}

void test_heartbeat() {
  std::atomic<int> beats = 0;
  {
    Heartbeat heartbeat([&] { ++beats; }, 2ms, 40ms);
    std::this_thread::sleep_for(10ms);
    expect(beats == 0, "no beat before activity");
    heartbeat.touch();
    for (int i = 0; i < 500 && beats < 3; ++i) std::this_thread::sleep_for(1ms);
    expect(beats >= 3, "beats while active");
    std::this_thread::sleep_for(120ms);
    const int resting = beats;
    std::this_thread::sleep_for(30ms);
    expect(beats == resting, "no beat after the activity has lingered");
    heartbeat.touch();
    for (int i = 0; i < 500 && beats == resting; ++i) std::this_thread::sleep_for(1ms);
    expect(beats > resting, "activity wakes it");
  }
  const int ended = beats;
  std::this_thread::sleep_for(10ms);
  expect(beats == ended, "no beat after its end");
}

// A forked child has no copy of the thread; what it destroys must not wait for it.
void test_heartbeat_in_a_forked_child() {
  auto heartbeat = std::make_unique<Heartbeat>([] {}, 1ms, 10s);
  heartbeat->touch();
  std::this_thread::sleep_for(5ms);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);  // ends a child that hangs
    heartbeat.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended by itself");
}

// A user without a folder for caches: nothing is written, least of all where the process happens to stand.
void test_verdicts_without_a_file() {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const VerdictCache cache{fs::path()};
  cache.store("key", {true, "reason"});
  const bool is_clean = fs::is_empty(folder.path());
  fs::current_path(before);
  expect(is_clean && !cache.find("key").has_value(), "no file, no verdict");
}

// -- tensor operations -----------------------------------------------------------------------------------------------

class FakeProbe final : public TensorProbe {
 public:
  bool system = true;
  bool hardware = true;
  std::string compile_message;
  std::string test_message;
  bool test_throws = false;
  int compiles = 0;
  int tests = 0;

  [[nodiscard]] bool has_system() override { return system; }
  [[nodiscard]] bool has_hardware() override { return hardware; }
  [[nodiscard]] std::string compile() override {
    ++compiles;
    return compile_message;
  }
  [[nodiscard]] std::string self_test() override {
    ++tests;
    if (test_throws) throw Error(ErrorKind::backend, "the pass failed");
    return test_message;
  }
};

void test_order_of_detection() {
  const Folder folder;
  const VerdictCache cache(folder.path() / "deep" / "verdicts");
  const auto decide = [&](FakeProbe& probe, TensorSwitch wanted = TensorSwitch::automatic,
                          const std::string& key = "macOS\t26.2; M5") {
    return decide_tensor(probe, wanted, cache, key);
  };
  FakeProbe probe;
  probe.system = false;
  expect(!decide(probe).enabled && probe.compiles == 0, "an older system compiles nothing");
  probe.system = true;
  probe.hardware = false;
  expect(!decide(probe).enabled && probe.compiles == 0, "an older GPU compiles nothing");
  expect(!decide(probe, TensorSwitch::off).enabled && probe.compiles == 0, "off");
  expect(decide(probe, TensorSwitch::on).enabled && probe.compiles == 1 && probe.tests == 1, "on, whatever the GPU");
  probe = {};
  probe.compile_message = "a.metal:3: error";
  expect(contains(decide(probe).reason, "a.metal:3") && probe.tests == 0,
         "a compiler's message is told, nothing thrown");
  expect(!decide(probe, TensorSwitch::on).enabled, "on does not help what does not compile");
  probe = {};
  expect(decide(probe).enabled && probe.tests == 1, "all is well: tested once");
  expect(decide(probe).enabled && probe.tests == 1 && probe.compiles == 2, "the verdict is cached, compiling is not");
  probe.test_message = "row 9";
  const TensorVerdict wrong = decide(probe, TensorSwitch::automatic, "other GPU");
  expect(!wrong.enabled && contains(wrong.reason, "row 9") && probe.tests == 2, "a wrong result switches off");
  probe.test_message.clear();
  expect(!decide(probe, TensorSwitch::automatic, "other GPU").enabled && probe.tests == 2, "and stays known");
  probe.test_throws = true;
  expect(contains(decide(probe, TensorSwitch::automatic, "third").reason, "the pass failed"),
         "a failed pass switches off");
}

void test_interrupted_self_test() {
  const Folder folder;
  const VerdictCache cache(folder.path() / "verdicts");
  // While the test runs, the file says that it has not ended: that is what a process finds after a crash in it.
  class Looking final : public TensorProbe {
   public:
    explicit Looking(const VerdictCache& cache) : cache_(cache) {}
    bool has_system() override { return true; }
    bool has_hardware() override { return true; }
    std::string compile() override { return ""; }
    std::string self_test() override {
      seen = cache_.find("key");
      return "";
    }
    std::optional<TensorVerdict> seen;

   private:
    const VerdictCache& cache_;
  } probe(cache);
  expect(decide_tensor(probe, TensorSwitch::automatic, cache, "key").enabled, "the test ends well");
  expect(probe.seen.has_value() && !probe.seen->enabled, "off until the test has ended");
  expect(contains(probe.seen->reason, "delete " + (folder.path() / "verdicts").string()), "and how it is run again");
  std::ofstream(folder.path() / "verdicts") << "no tabs\nkey\tmaybe\tx\n";
  expect(!cache.find("key").has_value(), "lines of another form count for nothing");
  cache.store("key", {true, "reason"});
  std::string kept;
  std::getline(std::ifstream(folder.path() / "verdicts"), kept);
  expect(kept == "no tabs" && !cache.find("key").has_value(), "and a file without any other is not replaced");
  expect(parse_tensor_switch(nullptr) == TensorSwitch::automatic && parse_tensor_switch("1") == TensorSwitch::on &&
             parse_tensor_switch("0") == TensorSwitch::off,
         "switch");
  expect(contains(error_of(ErrorKind::config, [] { static_cast<void>(parse_tensor_switch("yes")); }), "yes"),
         "switch text");
}

}  // namespace
}  // namespace lily::device::metal

int main() {
  using namespace lily::device::metal;
  return lily::run_tests({
      {"sources are joined", test_sources_are_joined},
      {"wrong sources are refused", test_wrong_sources_are_refused},
      {"shipped sources", test_shipped_sources},
      {"commands of a pass", test_commands_of_a_pass},
      {"faults are found", test_faults_are_found},
      {"split by time", test_split_by_time},
      {"shapes of passes", test_shapes_of_passes},
      {"seconds that say nothing are not noted", test_seconds_that_say_nothing_are_not_noted},
      {"shapes are forgotten", test_shapes_are_forgotten},
      {"errors have remedies", test_errors_have_remedies},
      {"waiters are released", test_waiters_are_released},
      {"lost device and failed pass", test_lost_device_and_failed_pass},
      {"memory budget", test_memory_budget},
      {"limits of the budget are exact", test_limits_of_the_budget_are_exact},
      {"gibibytes are rounded", test_gibibytes_are_rounded},
      {"nothing is lost between threads", test_nothing_is_lost_between_threads},
      {"budget of many threads", test_budget_of_many_threads},
      {"heartbeat", test_heartbeat},
      {"heartbeat in a forked child", test_heartbeat_in_a_forked_child},
      {"order of detection", test_order_of_detection},
      {"interrupted self-test", test_interrupted_self_test},
      {"verdicts without a file", test_verdicts_without_a_file},
  });
}
