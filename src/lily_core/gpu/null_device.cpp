// gpu/null_device.cpp -- buffers without memory, pipelines without code, passes that are done at once.
#include "gpu/null_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lily::gpu {
namespace {

class NullBuffer final : public device::Buffer {
 public:
  NullBuffer(std::uint64_t size, device::BufferStorage storage, std::string label,
             std::shared_ptr<std::atomic<std::uint64_t>> allocated, NullContents contents)
      : size_(size),
        storage_(storage),
        label_(std::move(label)),
        allocated_(std::move(allocated)),
        contents_(contents) {
    *allocated_ += size_;
  }
  ~NullBuffer() override { *allocated_ -= size_; }
  NullBuffer(const NullBuffer&) = delete;
  NullBuffer& operator=(const NullBuffer&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::byte* contents() override {
    return storage_ == device::BufferStorage::private_ ? nullptr : memory();
  }
  void read(std::uint64_t offset, std::span<std::byte> out) override {
    std::memcpy(out.data(), memory() + offset, out.size());
  }
  void write(std::uint64_t offset, std::span<const std::byte> values) override {
    if (contents_ == NullContents::kept) std::memcpy(memory() + offset, values.data(), values.size());
  }
  void clear() override {
    if (contents_ == NullContents::kept) std::fill_n(memory(), size_, std::byte{0});
  }
  [[nodiscard]] const std::string& label() const override { return label_; }

 private:
  std::byte* memory() {
    if (memory_.empty()) memory_.resize(size_);
    return memory_.data();
  }

  std::uint64_t size_;
  device::BufferStorage storage_;
  std::string label_;
  std::shared_ptr<std::atomic<std::uint64_t>> allocated_;
  NullContents contents_;
  std::vector<std::byte> memory_;
};

class NullPipeline final : public device::Pipeline {
 public:
  explicit NullPipeline(std::string name) : name_(std::move(name)) {}
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t max_threads_per_threadgroup() const override { return 1024; }
  [[nodiscard]] std::span<const device::SlotUse> slots() const override { return {}; }

 private:
  std::string name_;
};

class NullTicket final : public device::Ticket {
 public:
  [[nodiscard]] bool done() override { return true; }
  device::PassResult wait() override { return {}; }
};

}  // namespace

std::shared_ptr<device::Buffer> NullDevice::allocate(std::uint64_t size, device::BufferStorage storage,
                                                     std::string label) {
  return std::make_shared<NullBuffer>(size, storage, std::move(label), allocated_, contents_);
}

std::shared_ptr<device::Buffer> NullDevice::wrap(const std::byte* /*data*/, std::uint64_t size, std::string label,
                                                 const CopyProgress& /*progress*/) {
  return std::make_shared<NullBuffer>(size, device::BufferStorage::private_, std::move(label), wrapped_, contents_);
}

const device::Pipeline& NullDevice::pipeline(const std::string& kernel,
                                             std::span<const device::FunctionConstant> constants) {
  Constants values;
  for (const device::FunctionConstant& constant : constants) values.emplace_back(constant.index, constant.value);
  const std::scoped_lock lock(mutex_);
  auto& found = pipelines_[{kernel, std::move(values)}];
  if (found == nullptr) found = std::make_unique<NullPipeline>(kernel);
  return *found;
}

std::vector<device::PipelineRequest> NullDevice::requests() const {
  const std::scoped_lock lock(mutex_);
  std::vector<device::PipelineRequest> all;
  for (const auto& [key, pipeline] : pipelines_) {
    device::PipelineRequest request{.kernel = key.first, .constants = {}};
    for (const auto& [index, value] : key.second) request.constants.push_back({.index = index, .value = value});
    all.push_back(std::move(request));
  }
  return all;
}

std::unique_ptr<device::Ticket> NullDevice::submit(std::span<const device::Stage> /*stages*/) {
  return std::make_unique<NullTicket>();
}

}  // namespace lily::gpu
