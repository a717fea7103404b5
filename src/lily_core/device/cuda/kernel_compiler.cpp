// device/cuda/kernel_compiler.cpp -- one task a kernel.
#include "device/cuda/kernel_compiler.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace lily::device::cuda {
namespace {

class Turn {
 public:
  explicit Turn(std::counting_semaphore<>& semaphore) : semaphore_(semaphore) { semaphore_.acquire(); }
  ~Turn() { semaphore_.release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::counting_semaphore<>& semaphore_;
};

}  // namespace

KernelCompiler::KernelCompiler(std::filesystem::path library, std::filesystem::path cache, std::string architecture)
    : library_(std::move(library)),
      cache_(std::move(cache)),
      architecture_(std::move(architecture)),
      processors_(std::max(1U, std::thread::hardware_concurrency())) {}

std::future<std::string> KernelCompiler::start(const KernelEntry& entry, std::span<const FunctionConstant> constants) {
  return std::async(std::launch::async, [this, name = entry.name, source = library_.source(entry, constants)] {
    const Turn turn(processors_);
    return make(name, source);
  });
}

std::string KernelCompiler::make(const std::string& name, const std::string& source) {
  const std::string key = nvrtc_.dialect() + "\n" + architecture_ + "\n" + name + "\n" + library_.header() + source;
  if (std::optional<std::string> cubin = cache_.load(key)) return *std::move(cubin);
  std::string cubin = nvrtc_.compile(name, source, library_.header(), architecture_, false).cubin;
  cache_.store(key, cubin);
  return cubin;
}

}  // namespace lily::device::cuda
