// tests/cpp/test_metal_errors.cpp -- errors of command buffers, and what waits for them.
#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "device/metal/command_error.h"
#include "device/metal/pass_state.h"
#include "text.h"

namespace lily::device::metal {
namespace {

CommandError error_with(std::int64_t code, const std::string& description = "text") {
  return {.of_command_buffer = true, .code = code, .description = description, .part = "part 2 of 3"};
}

TEST_CASE("errors have remedies") {
  REQUIRE_MESSAGE(
      (contains(describe(error_with(2)), "pass_seconds") && contains(describe(error_with(2)), "part 2 of 3")),
      "timeout");
  REQUIRE_MESSAGE(contains(describe(error_with(8)), "iogpu.wired_limit_mb"), "out of memory");
  REQUIRE_MESSAGE(contains(describe(error_with(14)), "display"), "interactivity by its code");
  const std::string driver = "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)";
  REQUIRE_MESSAGE(
      (contains(describe(error_with(1, driver)), "display") && contains(describe(error_with(1, driver)), driver)),
      "interactivity by the driver's text, which is kept");
  REQUIRE_MESSAGE(contains(describe(error_with(4)), "restart the process"), "access revoked");
  const auto by_text = [](const char* name) {
    return describe(error_with(1, std::string("kIOGPUCommandBuffer") + name));
  };
  REQUIRE_MESSAGE(contains(by_text("CallbackErrorSubmissionsIgnored"), "restart the process"),
                  "access revoked by the text");
  REQUIRE_MESSAGE(contains(by_text("CallbackErrorInnocentVictim"), "try again"), "another program's error");
  REQUIRE_MESSAGE(contains(by_text("CallbackErrorPageFault"), "outside its buffers"), "page fault");
  REQUIRE_MESSAGE(kind_of(error_with(8)) == ErrorKind::memory_limit, "out of memory is a memory error");
  REQUIRE_MESSAGE(
      kind_of(error_with(1, "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)")) == ErrorKind::memory_limit,
      "by the driver's text as well");
  REQUIRE_MESSAGE(kind_of(error_with(2)) == ErrorKind::backend, "the others are the device's");
  CommandError foreign = error_with(2);
  foreign.of_command_buffer = false;
  REQUIRE_MESSAGE(!contains(describe(foreign), "pass_seconds"), "another domain's numbers mean other things");
  REQUIRE_MESSAGE((loses_device(error_with(11)) && loses_device(error_with(4))), "lost devices");
  REQUIRE_MESSAGE((!loses_device(error_with(2)) && !loses_device(error_with(8)) && !loses_device(foreign)),
                  "kept devices");
}

TEST_CASE("waiters are released") {
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
  REQUIRE_MESSAGE(!pass->finish_one({.gpu_seconds = 0.25, .error = std::nullopt}, 0.25), "the first of three");
  REQUIRE_MESSAGE(!pass->finish_one({.gpu_seconds = 0.0, .error = error_with(2)}, 0.0), "the second of three");
  REQUIRE_MESSAGE(!pass->done(), "two of three");
  REQUIRE_MESSAGE(pass->finish_one({.gpu_seconds = 0.5, .error = error_with(8)}, 0.5),
                  "the last");  // the first error is told
  for (std::jthread& waiter : waiters) waiter.join();
  REQUIRE_MESSAGE((released == 4 && !health->lost().has_value()),
                  "all waiters have the first error; the device is not lost");
}

TEST_CASE("lost device and failed pass") {
  const auto health = std::make_shared<DeviceHealth>();
  PassState pass(1, health);
  pass.finish_one({.gpu_seconds = 0.0, .error = error_with(11, "gone")}, 0.0);
  REQUIRE_MESSAGE((health->lost().has_value() && contains(*health->lost(), "gone")), "the reason is kept");
  health->lose("later");
  REQUIRE_MESSAGE(contains(*health->lost(), "gone"), "the first reason stays");
  PassState refused(5, health);
  refused.fail("refused");
  REQUIRE_MESSAGE((refused.done() && refused.wait().error == "refused"), "a refused pass waits for nothing");
  refused.finish_one({.gpu_seconds = 1.0, .error = std::nullopt}, 1.0);
  REQUIRE_MESSAGE((refused.done() && refused.wait().error == "refused"), "a late report changes nothing");
}

}  // namespace
}  // namespace lily::device::metal
