// gpu/session_state.cpp -- allocation and sharing of a sequence's memory on the device.
#include "gpu/session_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/decode_steps.h"
#include "gpu/only_holder.h"

namespace lily::gpu {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kSlotBytes = 64;  // token at 0, position at 16, attention position at 32
constexpr std::uint64_t kPositionOffset = 16;
constexpr std::uint64_t kAttentionPositionOffset = 32;
constexpr std::size_t kTensorsPerLayer = 2;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

GpuSessionState::GpuSessionState(std::shared_ptr<device::Device> device, const ModelConfig& config,
                                 std::int64_t max_context)
    : device_(std::move(device)),
      config_(config),
      cache_(device_, config, max_context),
      steps_(std::make_unique<StepsInFlight>()) {
  std::uint32_t attention_layers = 0;
  for (const LayerType type : config_.layer_types) {
    offsets_.emplace_back();
    cache_index_.push_back(0);
    if (type == LayerType::full_attention) {
      cache_index_.back() = attention_layers++;
      continue;
    }
    offsets_.back().state = recurrent_bytes_;
    offsets_.back().conv_state = recurrent_bytes_ + rounded(state_bytes());
    recurrent_bytes_ = offsets_.back().conv_state + rounded(conv_bytes());
  }
}

// Shares everything but the slots; steps in flight stay with the other.
GpuSessionState::GpuSessionState(const GpuSessionState& other)
    : SessionState(other),
      device_(other.device_),
      config_(other.config_),
      offsets_(other.offsets_),
      cache_index_(other.cache_index_),
      recurrent_bytes_(other.recurrent_bytes_),
      cache_(other.cache_),
      current_(other.current_),
      lost_(other.lost_),
      steps_(std::make_unique<StepsInFlight>()) {
  recurrent_[current_] = other.recurrent_[current_];
}

GpuSessionState::~GpuSessionState() { steps_->give_up(*this); }

std::uint64_t GpuSessionState::state_bytes() const {
  return 4 * static_cast<std::uint64_t>(config_.linear_value_dim() * config_.linear_key_head_dim);
}

std::uint64_t GpuSessionState::conv_bytes() const {
  return 4 * static_cast<std::uint64_t>((config_.linear_conv_kernel_dim - 1) * config_.linear_conv_dim());
}

std::uint64_t GpuSessionState::logits_stride() const {
  return rounded(4 * static_cast<std::uint64_t>(config_.vocab_size));
}

std::shared_ptr<RecurrentCopy> GpuSessionState::new_recurrent(bool zero) const {
  auto copy = std::make_shared<RecurrentCopy>();
  copy->buffer = device_->allocate(std::max<std::uint64_t>(recurrent_bytes_, 4), device::BufferStorage::private_,
                                   "recurrent state");
  if (zero) copy->buffer->clear();
  return copy;
}

void GpuSessionState::ensure_current() {
  if (recurrent_[current_] == nullptr) recurrent_[current_] = new_recurrent(true);
  if (slots_ == nullptr) slots_ = device_->allocate(2 * kSlotBytes, device::BufferStorage::shared, "step slots");
  if (logits_ == nullptr) {
    logits_ = device_->allocate(2 * logits_stride(), device::BufferStorage::private_, "logits");
  }
}

CacheMove GpuSessionState::prepare(std::int64_t begin, std::int64_t end, std::uint32_t index) {
  ensure_current();
  auto& other = recurrent_[1 - index];
  if (other == nullptr || !is_only_holder(other)) other = new_recurrent(false);
  return cache_.prepare(begin, end);
}

StateViews GpuSessionState::views(std::uint32_t index, std::int64_t position) const {
  StateViews views;
  views.position = position;
  views.capacity = cache_capacity();
  const View from = whole(*recurrent_[index]->buffer, MemoryKind::recurrent);
  const View to = whole(*recurrent_[1 - index]->buffer, MemoryKind::recurrent);
  for (std::size_t layer = 0; layer < config_.layer_types.size(); ++layer) {
    views.gdn.emplace_back();
    views.cache.emplace_back();
    if (config_.layer_types[layer] == LayerType::full_attention) {
      views.cache.back() = {cache_.keys(cache_index_[layer]), cache_.values(cache_index_[layer])};
      continue;
    }
    const LayerOffsets& at = offsets_[layer];
    views.gdn.back() = {.state = from.part(at.state, state_bytes()),
                        .next_state = to.part(at.state, state_bytes()),
                        .conv_state = from.part(at.conv_state, conv_bytes()),
                        .next_conv_state = to.part(at.conv_state, conv_bytes())};
  }
  const View slots = whole(*slots_);
  const View slot = slots.part(index * kSlotBytes, kSlotBytes);
  const View next = slots.part((1 - index) * kSlotBytes, kSlotBytes);
  views.token = slot.part(0, 4);
  views.device_position = slot.part(kPositionOffset, 4);
  views.attention_position = slot.part(kAttentionPositionOffset, 4);
  views.next_token = next.part(0, 4);
  views.next_device_position = next.part(kPositionOffset, 4);
  const auto logits_bytes = 4 * static_cast<std::uint64_t>(config_.vocab_size);
  views.logits = whole(*logits_).part((1 - index) * logits_stride(), logits_bytes);
  return views;
}

std::vector<std::shared_ptr<device::Buffer>> GpuSessionState::memory() const {
  std::vector<std::shared_ptr<device::Buffer>> all = {recurrent_[0]->buffer, recurrent_[1]->buffer, slots_, logits_};
  cache_.append_memory(all);
  return all;
}

void GpuSessionState::commit(std::uint32_t index, std::int64_t position) {
  current_ = 1 - index;
  position_ = position;
}

void GpuSessionState::write_slots(std::uint32_t index, std::int32_t token, std::int64_t position,
                                  std::int64_t attention_position) {
  std::byte* slot = slots_->contents() + index * kSlotBytes;
  const auto position32 = static_cast<std::int32_t>(position);
  const auto attention_position32 = static_cast<std::int32_t>(attention_position);
  std::memcpy(slot, &token, sizeof(token));
  std::memcpy(slot + kPositionOffset, &position32, sizeof(position32));
  std::memcpy(slot + kAttentionPositionOffset, &attention_position32, sizeof(attention_position32));
}

std::int32_t GpuSessionState::token_slot(std::uint32_t index) const {
  std::int32_t token = 0;
  slots_->read(index * kSlotBytes, std::as_writable_bytes(std::span(&token, 1)));
  return token;
}

void GpuSessionState::read_logits(std::span<float> logits) const {
  logits_->read(current_ * logits_stride(), std::as_writable_bytes(logits));
}

void GpuSessionState::reset() {
  steps_->give_up(*this);
  if (recurrent_[current_] != nullptr && is_only_holder(recurrent_[current_])) {
    recurrent_[current_]->buffer->clear();
  } else {
    recurrent_[current_].reset();
  }
  cache_.reset();
  position_ = 0;
  lost_ = false;
}

std::unique_ptr<SessionState> GpuSessionState::clone() const {
  return std::unique_ptr<SessionState>(new GpuSessionState(*this));
}

void GpuSessionState::visit_memory(const MemoryVisitor& visit) const {
  for (const auto& copy : recurrent_) {
    if (copy != nullptr) visit(copy.get(), copy->buffer->size(), copy.use_count() > 1);
  }
  cache_.visit_memory(visit);
  for (const auto& buffer : {slots_, logits_}) {
    if (buffer != nullptr) visit(buffer.get(), buffer->size(), false);
  }
}

std::vector<StateTensor> GpuSessionState::tensors(std::int64_t position) const {
  const std::vector<std::int64_t> kv_shape = {position, config_.num_key_value_heads, config_.head_dim};
  std::vector<StateTensor> all;
  for (std::size_t layer = 0; layer < config_.layer_types.size(); ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    if (config_.layer_types[layer] == LayerType::linear_attention) {
      all.push_back({prefix + ".recurrent_state",
                     StateType::float32,
                     {config_.linear_num_value_heads, config_.linear_value_head_dim, config_.linear_key_head_dim}});
      all.push_back({prefix + ".conv_state",
                     StateType::float32,
                     {config_.linear_conv_kernel_dim - 1, config_.linear_conv_dim()}});
    } else {
      all.push_back({prefix + ".keys", StateType::bfloat16, kv_shape});
      all.push_back({prefix + ".values", StateType::bfloat16, kv_shape});
    }
  }
  return all;
}

void GpuSessionState::export_tensor(std::size_t index, std::span<std::byte> out) const {
  const std::size_t layer = index / kTensorsPerLayer;
  const bool second = index % kTensorsPerLayer != 0;
  if (config_.layer_types[layer] == LayerType::linear_attention) {
    if (recurrent_[current_] == nullptr) {
      std::memset(out.data(), 0, out.size());
      return;
    }
    const std::uint64_t offset = second ? offsets_[layer].conv_state : offsets_[layer].state;
    recurrent_[current_]->buffer->read(offset, out);
    return;
  }
  if (position_ == 0) return;  // there may be no cache yet
  cache_.read(cache_index_[layer], second, position_, out);
}

void GpuSessionState::begin_import(std::int64_t position) {
  reset();
  ensure_current();
  if (position > 0) static_cast<void>(prepare(0, position, current_));
  position_ = position;
}

void GpuSessionState::import_tensor(std::size_t index, std::span<const std::byte> values) {
  const std::size_t layer = index / kTensorsPerLayer;
  const bool second = index % kTensorsPerLayer != 0;
  if (config_.layer_types[layer] == LayerType::linear_attention) {
    const std::uint64_t offset = second ? offsets_[layer].conv_state : offsets_[layer].state;
    recurrent_[current_]->buffer->write(offset, values);
    return;
  }
  if (position_ == 0) return;
  cache_.write(cache_index_[layer], second, position_, values);
}

}  // namespace lily::gpu
