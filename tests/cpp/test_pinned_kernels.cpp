// tests/cpp/test_pinned_kernels.cpp -- the bits of the float kernels on fixed input, for every instruction set with
// fused multiply-add and every architecture. The matrix kernels' bits follow from a contract, see test_matmul.cpp.
//
// When a kernel is meant to give other bits, kArithmetic of cpu/arithmetic.h goes up by one and the new hash comes
// here: states that were saved before are refused then.
#include <doctest/doctest.h>

#include <algorithm>
#include <ios>

#include "cpu/arithmetic.h"
#include "kernel_test.h"

namespace {

using lily::cpu::KernelTable;
using lily::cpu::KvSpan;
using lily::cpu::KvType;

constexpr std::int64_t pinned_arithmetic = 2;
constexpr std::uint64_t pinned_hash = 0x83bb387f1e5ab122ULL;

// Numbers in [-1, 1) and hashes that every library and processor makes alike.
class Input {
 public:
  std::vector<float> values(std::int64_t count, float scale = 1.0F) {
    std::vector<float> result(static_cast<std::size_t>(count));
    for (float& value : result) value = (float(engine_() >> 8) * 0x1p-23F - 1.0F) * scale;
    return result;
  }

 private:
  std::mt19937 engine_{20261130};
};

class Hash {
 public:
  template <class T>
  void add(const std::vector<T>& values) {  // FNV-1a
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) state_ = (state_ ^ bytes[i]) * 0x100000001b3ULL;
  }
  [[nodiscard]] std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

void rows(const KernelTable& table, Input& input, Hash& hash) {
  for (const std::int64_t size : {5, 128, 203}) {
    auto x = input.values(size, 3.0F);
    const auto weight = input.values(size), gate = input.values(size, 8.0F);
    std::vector<float> out(x.size());
    table.rms_norm(x.data(), weight.data(), size, 1e-6F, out.data());
    hash.add(out);
    table.rms_norm_gated(x.data(), weight.data(), gate.data(), size, 1e-6F, out.data());
    hash.add(out);
    table.silu_multiply(gate.data(), x.data(), size, out.data());
    hash.add(out);
    table.sigmoid_multiply(out.data(), gate.data(), size);
    table.axpy(0.37F, x.data(), size, out.data());
    hash.add(out);
    table.softmax(gate.data(), size, out.data());
    hash.add(out);
    table.rope(x.data(), size / 2 * 2, weight.data(), gate.data());
    hash.add(x);
    table.l2_normalize(x.data(), size, 1e-6F, 0.3F);
    hash.add(x);
    for (const KvType type : {KvType::bfloat16, KvType::float16}) {
      std::vector<std::uint16_t> stored(x.size());
      table.store_kv(gate.data(), size, type, stored.data());
      hash.add(stored);
    }
  }
}

void sequences(const KernelTable& table, Input& input, Hash& hash) {
  const auto in = input.values(7 * 40), taps = input.values(40 * 4);
  auto history = input.values(3 * 40);
  std::vector<float> out(in.size());
  table.causal_conv_silu(in.data(), history.data(), taps.data(), 7, 40, 4, 0, 40, out.data());
  hash.add(out);
  hash.add(history);
  for (const std::int64_t key_dim : {36, 128}) {
    const auto query = input.values(6 * key_dim, 0.1F), key = input.values(6 * key_dim, 0.1F);
    const auto value = input.values(6 * key_dim), beta = input.values(6, 0.5F);
    auto decay = input.values(6, 0.1F);
    for (float& factor : decay) factor += 0.9F;
    auto state = input.values(20 * key_dim);
    std::vector<float> mixed(6 * 20);
    table.gdn_scan({6, key_dim, 0, 20, query.data(), key.data(), value.data(), key_dim, decay.data(), beta.data(), 1,
                    state.data(), mixed.data(), 20});
    hash.add(mixed);
    hash.add(state);
  }
}

void attention(const KernelTable& table, Input& input, Hash& hash) {
  constexpr std::int64_t positions = 150;
  for (const std::int64_t head_dim : {40, 256}) {
    for (const std::int64_t count : {1, 6, 70}) {
      for (const KvType type : {KvType::bfloat16, KvType::float16}) {
        const auto query = input.values(count * head_dim, 0.3F), cached = input.values(2 * positions * head_dim, 2.0F);
        std::vector<std::uint16_t> stored(cached.size());
        table.store_kv(cached.data(), std::int64_t(cached.size()), type, stored.data());
        std::vector<float> out(query.size());
        std::vector<const float*> queries;
        std::vector<float*> outs;
        std::vector<std::int64_t> visible;
        for (std::int64_t row = 0; row < count; ++row) {
          queries.push_back(query.data() + row * head_dim);
          outs.push_back(out.data() + row * head_dim);
          visible.push_back(positions - count + 1 + row);
        }
        const KvSpan span{stored.data(), stored.data() + positions * head_dim, positions};
        lily::test::Guarded<std::byte> scratch((table.attention_scratch_bytes(count, head_dim) + 63) / 64 * 64);
        table.attention({count, head_dim, queries.data(), outs.data(), visible.data(), &span, 1, type, scratch.data()});
        hash.add(out);
      }
    }
  }
}

TEST_CASE("the pinned bits") {
  CHECK_MESSAGE(lily::cpu::kArithmetic == pinned_arithmetic, "see the top of this file");
  for (const auto& isa : lily::test::float_isas()) {
    if (!isa.fused) continue;
    Input input;
    Hash hash;
    rows(isa.table, input, hash);
    sequences(isa.table, input, hash);
    attention(isa.table, input, hash);
    CHECK_MESSAGE(hash.state() == pinned_hash, isa.name, ": not the pinned bits; see the top of this file. Hash 0x",
                  std::hex, hash.state());
  }
}

}  // namespace
