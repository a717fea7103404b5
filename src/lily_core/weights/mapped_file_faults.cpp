// weights/mapped_file_faults.cpp -- a table of mappings that a signal handler can read, and the handler.
#include "weights/mapped_file_faults.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, with sigaction
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string_view>

namespace lily {
namespace {

constexpr std::uintptr_t kFree = 0;
constexpr std::uintptr_t kBeingFilled = 1;

// A handler has no argument of its own, so what it reads is static: a table of fixed size without any allocation.
// `begin` is written last when a row is filled, so a row that is found is whole.
struct Mapping {
  std::atomic<std::uintptr_t> begin{kFree};
  std::atomic<std::uintptr_t> end{0};
  std::array<char, 512> path{};
  std::size_t path_size = 0;
};

constinit std::array<Mapping, 256> mappings;

static_assert(std::atomic<std::uintptr_t>::is_always_lock_free, "a signal handler reads it");

void write_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, text.data(), text.size());
    if (count <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

// Only calls that are safe in a signal handler. The default action is back already (SA_RESETHAND), and the signal that
// is raised waits until this returns.
void on_bus_error(int signal, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const std::uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin <= kBeingFilled || address < begin || address >= mapping.end.load(std::memory_order_relaxed)) continue;
    write_all("lily: ");
    write_all({mapping.path.data(), mapping.path_size});
    write_all(
        ": the file was truncated, or its disk failed, while the model was using it; "
        "load the model again from a complete file\n");
    break;
  }
  ::raise(signal);
}

}  // namespace

void note_mapping(const std::byte* begin, std::uint64_t size, const std::string& path) {
  for (Mapping& mapping : mappings) {
    std::uintptr_t free = kFree;
    if (!mapping.begin.compare_exchange_strong(free, kBeingFilled, std::memory_order_acquire)) continue;
    mapping.path_size = std::min(path.size(), mapping.path.size());
    std::transform(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(mapping.path_size), mapping.path.begin(),
                   [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c; });
    const auto address = reinterpret_cast<std::uintptr_t>(begin);
    mapping.end.store(address + size, std::memory_order_relaxed);
    mapping.begin.store(address, std::memory_order_release);
    return;
  }
}

void forget_mapping(const std::byte* begin) {
  for (Mapping& mapping : mappings) {
    auto address = reinterpret_cast<std::uintptr_t>(begin);
    if (mapping.begin.compare_exchange_strong(address, kFree, std::memory_order_release)) return;
  }
}

bool report_mapping_faults() {
  struct sigaction present{};
  if (::sigaction(SIGBUS, nullptr, &present) != 0) return false;
  if ((present.sa_flags & SA_SIGINFO) != 0) return present.sa_sigaction == &on_bus_error;
  if (present.sa_handler != SIG_DFL) return false;
  struct sigaction action{};
  action.sa_sigaction = &on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return ::sigaction(SIGBUS, &action, nullptr) == 0;
}

}  // namespace lily
