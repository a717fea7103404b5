// tests/cpp/named_pipeline.h -- a kernel that has a name and nothing to run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "device/device.h"

namespace lily::device {

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

}  // namespace lily::device
