// gpu/session_state.cpp -- allocation, growth and sharing of a sequence's memory on the device.
#include "gpu/session_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lily::gpu {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kSlotBytes = 64;  // token at 0, position at 16, attention position at 32
constexpr std::uint64_t kPositionOffset = 16;
constexpr std::uint64_t kAttentionPositionOffset = 32;
constexpr std::int64_t kFirstCapacity = 256;  // positions
constexpr std::size_t kTensorsPerLayer = 2;

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

template <class T>
bool is_only_holder(const std::shared_ptr<T>& pointer) {
  if (pointer.use_count() != 1) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // after whatever the last other holder read
  return true;
}

}  // namespace

GpuSessionState::GpuSessionState(std::shared_ptr<device::Device> device, const ModelConfig& config,
                                 std::int64_t max_context)
    : device_(std::move(device)), config_(config), max_context_(max_context) {
  for (const LayerType type : config_.layer_types) {
    offsets_.emplace_back();
    cache_index_.push_back(0);
    if (type == LayerType::full_attention) {
      cache_index_.back() = attention_layers_++;
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
      max_context_(other.max_context_),
      offsets_(other.offsets_),
      cache_index_(other.cache_index_),
      recurrent_bytes_(other.recurrent_bytes_),
      attention_layers_(other.attention_layers_),
      cache_(other.cache_),
      current_(other.current_),
      lost_(other.lost_) {
  recurrent_[current_] = other.recurrent_[current_];
}

GpuSessionState::~GpuSessionState() {
  abandon_steps();
  wait_for_abandoned();
}

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

std::shared_ptr<CacheBuffers> GpuSessionState::new_cache(std::int64_t capacity) const {
  auto cache = std::make_shared<CacheBuffers>();
  cache->capacity = capacity;
  const auto bytes = static_cast<std::uint64_t>(config_.num_key_value_heads * capacity * config_.head_dim * 2);
  for (std::uint32_t i = 0; i < attention_layers_; ++i) {
    cache->keys.push_back(device_->allocate(bytes, device::BufferStorage::private_, "keys " + std::to_string(i)));
    cache->values.push_back(device_->allocate(bytes, device::BufferStorage::private_, "values " + std::to_string(i)));
  }
  return cache;
}

std::int64_t GpuSessionState::grown_capacity(std::int64_t positions) const {
  std::int64_t capacity = kFirstCapacity;
  while (capacity < positions) capacity *= 2;
  return std::min(capacity, std::max(max_context_, positions));
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
  CacheMove move;
  if (cache_ != nullptr && end <= cache_->capacity) {
    if (is_only_holder(cache_)) {
      cache_->written.store(end, std::memory_order_relaxed);
      return move;
    }
    std::int64_t expected = begin;
    if (cache_->written.compare_exchange_strong(expected, end, std::memory_order_acq_rel)) return move;
  }
  auto cache = new_cache(grown_capacity(end));
  cache->written.store(end, std::memory_order_relaxed);
  if (cache_ != nullptr && begin > 0) {
    const auto head_bytes = static_cast<std::uint64_t>(config_.head_dim * 2);
    const std::uint64_t kept = static_cast<std::uint64_t>(begin) * head_bytes;
    for (std::uint32_t layer = 0; layer < attention_layers_; ++layer) {
      for (const auto field : {&CacheBuffers::keys, &CacheBuffers::values}) {
        const View from = whole(*((*cache_).*field)[layer], MemoryKind::cache);
        const View to = whole(*((*cache).*field)[layer], MemoryKind::cache);
        for (std::uint64_t head = 0; head < static_cast<std::uint64_t>(config_.num_key_value_heads); ++head) {
          move.copies.push_back({from.part(head * static_cast<std::uint64_t>(cache_->capacity) * head_bytes, kept),
                                 to.part(head * static_cast<std::uint64_t>(cache->capacity) * head_bytes, kept)});
        }
      }
    }
    move.from = cache_;
  }
  cache_ = std::move(cache);
  return move;
}

StateViews GpuSessionState::views(std::uint32_t index, std::int64_t position) const {
  StateViews views;
  views.position = position;
  views.capacity = static_cast<std::uint32_t>(cache_->capacity);
  const View from = whole(*recurrent_[index]->buffer, MemoryKind::recurrent);
  const View to = whole(*recurrent_[1 - index]->buffer, MemoryKind::recurrent);
  for (std::size_t layer = 0; layer < config_.layer_types.size(); ++layer) {
    views.gdn.emplace_back();
    views.cache.emplace_back();
    if (config_.layer_types[layer] == LayerType::full_attention) {
      views.cache.back() = {whole(*cache_->keys[cache_index_[layer]], MemoryKind::cache),
                            whole(*cache_->values[cache_index_[layer]], MemoryKind::cache)};
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
  all.insert(all.end(), cache_->keys.begin(), cache_->keys.end());
  all.insert(all.end(), cache_->values.begin(), cache_->values.end());
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

void GpuSessionState::abandon_steps() {
  if (steps.empty()) return;
  std::int64_t expected = steps.back().position + 1;
  cache_->written.compare_exchange_strong(expected, steps.front().position, std::memory_order_acq_rel);
  for (Step& step : steps) abandoned_.push_back(std::move(step));
  steps.clear();
}

void GpuSessionState::wait_for_abandoned() {
  for (Step& step : abandoned_) step.ticket->wait();  // whether it failed matters to no one
  abandoned_.clear();
}

void GpuSessionState::reset() {
  abandon_steps();
  wait_for_abandoned();
  if (recurrent_[current_] != nullptr && is_only_holder(recurrent_[current_])) {
    recurrent_[current_]->buffer->clear();
  } else {
    recurrent_[current_].reset();
  }
  if (cache_ != nullptr && is_only_holder(cache_)) {
    cache_->written.store(0, std::memory_order_relaxed);
  } else {
    cache_.reset();
  }
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
  if (cache_ != nullptr) {
    std::size_t bytes = 0;
    for (const auto& buffer : cache_->keys) bytes += 2 * buffer->size();
    visit(cache_.get(), bytes, cache_.use_count() > 1);
  }
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

device::Buffer& GpuSessionState::cache_buffer(std::size_t layer, bool values) const {
  return *(values ? cache_->values : cache_->keys)[cache_index_[layer]];
}

std::uint64_t GpuSessionState::head_offset(std::uint64_t head) const {
  return head * static_cast<std::uint64_t>(cache_->capacity * config_.head_dim * 2);
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
  // The cache is [kv_heads, capacity, head_dim], the tensor [positions, kv_heads, head_dim].
  const auto row = static_cast<std::size_t>(config_.head_dim * 2);
  const auto heads = static_cast<std::size_t>(config_.num_key_value_heads);
  const auto positions = static_cast<std::size_t>(position_);
  std::vector<std::byte> rows(positions * row);
  for (std::size_t head = 0; head < heads; ++head) {
    cache_buffer(layer, second).read(head_offset(head), rows);
    for (std::size_t position = 0; position < positions; ++position) {
      std::memcpy(out.data() + (position * heads + head) * row, rows.data() + position * row, row);
    }
  }
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
  const auto row = static_cast<std::size_t>(config_.head_dim * 2);
  const auto heads = static_cast<std::size_t>(config_.num_key_value_heads);
  const auto positions = static_cast<std::size_t>(position_);
  std::vector<std::byte> rows(positions * row);
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t position = 0; position < positions; ++position) {
      std::memcpy(rows.data() + position * row, values.data() + (position * heads + head) * row, row);
    }
    cache_buffer(layer, second).write(head_offset(head), rows);
  }
}

}  // namespace lily::gpu
