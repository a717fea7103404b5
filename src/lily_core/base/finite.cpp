// base/finite.cpp -- checks exponents, a vector of values at a time.
#include "base/finite.h"

#include <cstring>

namespace lily {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000U;  // all set in infinities and NaNs

template <class Word>
std::optional<std::int64_t> first_with(std::span<const std::byte> values, Word exponent) {
  const std::size_t count = values.size() / sizeof(Word);
  for (std::size_t i = 0; i < count; ++i) {
    Word word = 0;
    std::memcpy(&word, values.data() + i * sizeof(Word), sizeof(Word));
    if ((word & exponent) == exponent) return static_cast<std::int64_t>(i);
  }
  return std::nullopt;
}

// Whether one of the words has all bits of `exponent`: a loop that compilers vectorize.
template <class Word>
bool holds(std::span<const std::byte> values, Word exponent) {
  Word found = 0;
  const std::size_t count = values.size() / sizeof(Word);
  for (std::size_t i = 0; i < count; ++i) {
    Word word = 0;
    std::memcpy(&word, values.data() + i * sizeof(Word), sizeof(Word));
    found |= static_cast<Word>((word & exponent) == exponent ? 1 : 0);
  }
  return found != 0;
}

}  // namespace

bool all_finite(std::span<const float> values) { return !holds(std::as_bytes(values), kExponent); }

std::optional<std::int64_t> first_non_finite(std::span<const std::byte> values, StateType type) {
  if (type == StateType::float32) {
    return holds(values, kExponent) ? first_with(values, kExponent) : std::nullopt;
  }
  const auto exponent = static_cast<std::uint16_t>(type == StateType::float16 ? 0x7c00U : 0x7f80U);
  return holds(values, exponent) ? first_with(values, exponent) : std::nullopt;
}

}  // namespace lily
