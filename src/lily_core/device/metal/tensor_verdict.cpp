// device/metal/tensor_verdict.cpp -- the order of detection, and the file of verdicts.
#include "device/metal/tensor_verdict.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "device/own_file.h"

namespace lily::device::metal {
namespace {

constexpr std::uintmax_t kMostBytes = 1U << 20;

constexpr const char* kUnfinished = "the self-test did not finish when it was first run here; to run it again, delete ";

std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t' || c == '\r'; }, ' ');
  return text;
}

// Lines of key, "on" or "off", reason, separated by tabs.
std::map<std::string, TensorVerdict> read_all(const std::filesystem::path& file) {
  std::map<std::string, TensorVerdict> verdicts;
  std::istringstream lines(read_own_file(file, kMostBytes).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string key;
    std::string state;
    std::string reason;
    if (!std::getline(fields, key, '\t') || !std::getline(fields, state, '\t')) continue;
    std::getline(fields, reason);
    if (state == "on" || state == "off") verdicts[key] = {state == "on", reason};
  }
  return verdicts;
}

// A probe may throw anything; whatever it is, the other kernels go on.
template <class Probe>
std::string outcome_of(Probe&& probe) {
  try {
    return probe();
  } catch (const std::exception& error) {
    return error.what();
  }
}

TensorVerdict test(TensorProbe& probe, const VerdictCache& cache, const std::string& key) {
  // If the test crashes the process, the next process must not try again.
  cache.store(key, {false, kUnfinished + cache.file().string()});
  const std::string difference = outcome_of([&] { return probe.self_test(); });
  const TensorVerdict verdict = difference.empty() ? TensorVerdict{true, "the self-test agrees with the other kernels"}
                                                   : TensorVerdict{false, "the self-test differs: " + difference};
  cache.store(key, verdict);
  return verdict;
}

}  // namespace

TensorSwitch parse_tensor_switch(const char* text) {
  const std::string value = text == nullptr ? "" : text;
  if (value.empty()) return TensorSwitch::automatic;
  if (value == "0") return TensorSwitch::off;
  if (value == "1") return TensorSwitch::on;
  throw Error(ErrorKind::config, "LILY_METAL_TENSOR is \"0\" (off), \"1\" (on) or unset, not \"" + value + "\"");
}

std::optional<TensorVerdict> VerdictCache::find(const std::string& key) const {
  const auto verdicts = read_all(file_);
  const auto found = verdicts.find(one_line(key));
  if (found == verdicts.end()) return std::nullopt;
  return found->second;
}

void VerdictCache::store(const std::string& key, const TensorVerdict& verdict) const {
  if (file_.empty()) return;
  auto verdicts = read_all(file_);
  std::error_code ignored;
  const bool absent = std::filesystem::symlink_status(file_, ignored).type() == std::filesystem::file_type::not_found;
  if (verdicts.empty() && !absent) return;  // what is there is not ours
  verdicts[one_line(key)] = {verdict.enabled, one_line(verdict.reason)};
  std::filesystem::create_directories(file_.parent_path(), ignored);
  const std::filesystem::path fresh = file_.string() + "." + std::to_string(::getpid());
  {
    std::ofstream lines(fresh);
    for (const auto& [name, value] : verdicts) {
      lines << name << '\t' << (value.enabled ? "on" : "off") << '\t' << value.reason << '\n';
    }
    if (!lines.flush()) {
      std::filesystem::remove(fresh, ignored);
      return;
    }
  }
  std::filesystem::rename(fresh, file_, ignored);
  if (ignored) std::filesystem::remove(fresh, ignored);
}

TensorVerdict decide_tensor(TensorProbe& probe, TensorSwitch wanted, const VerdictCache& cache,
                            const std::string& key) {
  if (wanted == TensorSwitch::off) return {false, "switched off by LILY_METAL_TENSOR=0"};
  const bool forced = wanted == TensorSwitch::on;
  if (!forced) {
    if (!probe.has_system()) return {false, "needs macOS 26.2 or later"};
    if (!probe.has_hardware()) return {false, "needs a GPU of family Apple10 (M5) or later"};
    const std::optional<TensorVerdict> known = cache.find(key);
    if (known.has_value() && !known->enabled) return *known;
    const std::string message = outcome_of([&] { return probe.compile(); });
    if (!message.empty()) return {false, "the kernels do not compile: " + message};
    return known.has_value() ? *known : test(probe, cache, key);
  }
  const std::string message = outcome_of([&] { return probe.compile(); });
  if (!message.empty()) return {false, "LILY_METAL_TENSOR=1, but the kernels do not compile: " + message};
  const std::string difference = outcome_of([&] { return probe.self_test(); });
  return {true, difference.empty()
                    ? "switched on by LILY_METAL_TENSOR=1; the self-test agrees with the other kernels"
                    : "switched on by LILY_METAL_TENSOR=1 although the self-test differs: " + difference};
}

}  // namespace lily::device::metal
