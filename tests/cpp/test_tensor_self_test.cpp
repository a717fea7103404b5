// tests/cpp/test_tensor_self_test.cpp -- the self-test of tensor operations, with the plain kernels in their place on
// sim: right results pass, and each kind of wrong result is found.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/metal/tensor_self_test.h"
#ifdef LILY_HAS_SIM
#include "device/forwarding_device.h"
#include "device/sim.h"
#endif

#ifdef LILY_HAS_SIM
namespace lily::device {
namespace {

// sim under another name of the tensor kernels, which can spoil what they wrote.
class AliasDevice final : public ForwardingDevice {
 public:
  using Spoil = std::function<void(std::span<float> out, std::uint32_t columns)>;
  explicit AliasDevice(Spoil spoil)
      : ForwardingDevice(std::make_shared<SimDevice>(two_workers())), spoil_(std::move(spoil)) {}

  [[nodiscard]] std::string name() const override { return "alias"; }
  [[nodiscard]] const Pipeline& pipeline(const std::string& kernel,
                                         std::span<const FunctionConstant> constants) override {
    std::string plain = kernel;
    const auto at = plain.find("_tensor");
    is_tensor_ = at != std::string::npos;
    tensor_kernels_ += is_tensor_ ? 1 : 0;
    if (is_tensor_) plain.erase(at, std::strlen("_tensor"));
    return inner().pipeline(plain, constants);
  }
  [[nodiscard]] std::unique_ptr<Ticket> submit(std::span<const Stage> stages) override {
    auto ticket = inner().submit(stages);
    if (is_tensor_ && spoil_) {
      const Dispatch& dispatch = stages[0].dispatches[0];
      for (const BufferBinding& binding : dispatch.buffers) {
        if (binding.index != 4) continue;
        std::uint32_t rows_out = 0;
        std::memcpy(&rows_out, dispatch.bytes.data() + 4, sizeof(rows_out));
        spoil_({reinterpret_cast<float*>(binding.buffer->contents()), binding.buffer->size() / 4}, rows_out);
      }
    }
    return ticket;
  }
  [[nodiscard]] int tensor_kernels() const { return tensor_kernels_; }

 private:
  static SimOptions two_workers() {
    SimOptions options;
    options.workers = 2;
    return options;
  }

  Spoil spoil_;
  bool is_tensor_ = false;
  int tensor_kernels_ = 0;
};

TEST_CASE("equal kernels pass") {
  AliasDevice right({});
  const std::string nothing = metal::tensor_self_test(right);
  REQUIRE_MESSAGE(nothing.empty(), "equal kernels differ: ", nothing);
  REQUIRE_MESSAGE(right.tensor_kernels() == 5, "every case runs a tensor kernel");
}

TEST_CASE("every kind of wrong result is found") {
  AliasDevice wrong_rows([](std::span<float> out, std::uint32_t columns) { out[9 * columns + 3] += 0.05F; });
  const std::string rows = metal::tensor_self_test(wrong_rows);
  REQUIRE_MESSAGE((rows.find("row 9, column 3") != std::string::npos && rows.find("_tensor_") != std::string::npos),
                  rows);

  AliasDevice wrong_edge([](std::span<float> out, std::uint32_t) { out.back() = 0.0F; });
  REQUIRE_MESSAGE(!metal::tensor_self_test(wrong_edge).empty(), "an edge that is not written is found");

  AliasDevice not_a_number([](std::span<float> out, std::uint32_t) { out[0] = __builtin_nanf(""); });
  REQUIRE_MESSAGE(!metal::tensor_self_test(not_a_number).empty(), "a result that is no number is found");

  AliasDevice coarse([](std::span<float> out, std::uint32_t) {
    for (float& value : out) value *= 1.0F + 0x1p-9F;  // as if sums were kept in bf16
  });
  REQUIRE_MESSAGE(!metal::tensor_self_test(coarse).empty(), "sums in low precision are found");
}

}  // namespace
}  // namespace lily::device
#endif
