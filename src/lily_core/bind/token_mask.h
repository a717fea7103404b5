// bind/token_mask.h -- a mask of tokens from the caller: a NumPy array that outlives the call.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>

#include "engine/sampler.h"

namespace lily::bind {

using MaskArray = nanobind::ndarray<const std::uint32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline TokenMask as_mask(const std::optional<MaskArray>& mask) {
  return mask ? TokenMask(mask->data(), mask->size()) : TokenMask();
}

}  // namespace lily::bind
