// tests/cpp/test_metal_tensor_verdict.cpp -- whether tensor operations are used, and how that is found out once.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"
#include "device/metal/tensor_verdict.h"
#include "folder.h"
#include "text.h"

namespace lily::device::metal {
namespace {

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

TEST_CASE("order of detection") {
  const Folder folder;
  const VerdictCache cache(folder.path() / "deep" / "verdicts");
  const auto decide = [&](FakeProbe& probe, TensorSwitch wanted = TensorSwitch::automatic,
                          const std::string& key = "macOS\t26.2; M5") {
    return decide_tensor(probe, wanted, cache, key);
  };
  FakeProbe probe;
  probe.system = false;
  REQUIRE_MESSAGE((!decide(probe).enabled && probe.compiles == 0), "an older system compiles nothing");
  probe.system = true;
  probe.hardware = false;
  REQUIRE_MESSAGE((!decide(probe).enabled && probe.compiles == 0), "an older GPU compiles nothing");
  REQUIRE_MESSAGE((!decide(probe, TensorSwitch::off).enabled && probe.compiles == 0), "off");
  REQUIRE_MESSAGE((decide(probe, TensorSwitch::on).enabled && probe.compiles == 1 && probe.tests == 1),
                  "on, whatever the GPU");
  probe = {};
  probe.compile_message = "a.metal:3: error";
  REQUIRE_MESSAGE((contains(decide(probe).reason, "a.metal:3") && probe.tests == 0),
                  "a compiler's message is told, nothing thrown");
  REQUIRE_MESSAGE(!decide(probe, TensorSwitch::on).enabled, "on does not help what does not compile");
  probe = {};
  REQUIRE_MESSAGE((decide(probe).enabled && probe.tests == 1), "all is well: tested once");
  REQUIRE_MESSAGE((decide(probe).enabled && probe.tests == 1 && probe.compiles == 2),
                  "the verdict is cached, compiling is not");
  probe.test_message = "row 9";
  const TensorVerdict wrong = decide(probe, TensorSwitch::automatic, "other GPU");
  REQUIRE_MESSAGE((!wrong.enabled && contains(wrong.reason, "row 9") && probe.tests == 2),
                  "a wrong result switches off");
  probe.test_message.clear();
  REQUIRE_MESSAGE((!decide(probe, TensorSwitch::automatic, "other GPU").enabled && probe.tests == 2),
                  "and stays known");
  probe.test_throws = true;
  REQUIRE_MESSAGE(contains(decide(probe, TensorSwitch::automatic, "third").reason, "the pass failed"),
                  "a failed pass switches off");
}

TEST_CASE("interrupted self-test") {
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
  REQUIRE_MESSAGE(decide_tensor(probe, TensorSwitch::automatic, cache, "key").enabled, "the test ends well");
  REQUIRE_MESSAGE((probe.seen.has_value() && !probe.seen->enabled), "off until the test has ended");
  REQUIRE_MESSAGE(contains(probe.seen->reason, "delete " + (folder.path() / "verdicts").string()),
                  "and how it is run again");
  std::ofstream(folder.path() / "verdicts") << "no tabs\nkey\tmaybe\tx\n";
  REQUIRE_MESSAGE(!cache.find("key").has_value(), "lines of another form count for nothing");
  cache.store("key", {true, "reason"});
  std::string kept;
  std::getline(std::ifstream(folder.path() / "verdicts"), kept);
  REQUIRE_MESSAGE((kept == "no tabs" && !cache.find("key").has_value()),
                  "and a file without any other is not replaced");
  REQUIRE_MESSAGE((parse_tensor_switch(nullptr) == TensorSwitch::automatic &&
                   parse_tensor_switch("1") == TensorSwitch::on && parse_tensor_switch("0") == TensorSwitch::off),
                  "switch");
  REQUIRE_MESSAGE(contains(error_of(ErrorKind::config, [] { static_cast<void>(parse_tensor_switch("yes")); }), "yes"),
                  "switch text");
}

// A user without a folder for caches: nothing is written, least of all where the process happens to stand.
TEST_CASE("verdicts without a file") {
  const Folder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const VerdictCache cache{fs::path()};
  cache.store("key", {true, "reason"});
  const bool is_clean = fs::is_empty(folder.path());
  fs::current_path(before);
  REQUIRE_MESSAGE((is_clean && !cache.find("key").has_value()), "no file, no verdict");
}

}  // namespace
}  // namespace lily::device::metal
