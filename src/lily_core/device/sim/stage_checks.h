// device/sim/stage_checks.h -- what can be wrong with the dispatches of a stage before they run.
#pragma once

#include <string>

#include "device/device.h"

namespace lily::device::sim {

// The first thing wrong with a dispatch by itself: sizes, slots, ranges. Empty: nothing.
[[nodiscard]] std::string check_dispatch(const Dispatch& dispatch);

// Two dispatches of one stage of which one may write what the other touches. Empty: none.
[[nodiscard]] std::string check_hazards(const Stage& stage);

}  // namespace lily::device::sim
