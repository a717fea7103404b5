// base/finite.h -- whether values are finite: neither NaN nor infinite.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/backend.h"

namespace lily {

[[nodiscard]] bool all_finite(std::span<const float> values);
// Index of the first value that is NaN or infinite.
[[nodiscard]] std::optional<std::int64_t> first_non_finite(std::span<const std::byte> values, StateType type);

}  // namespace lily
