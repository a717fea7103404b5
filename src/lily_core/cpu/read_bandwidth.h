// cpu/read_bandwidth.h -- how fast threads read memory together: the limit of decoding.
#pragma once

#include <cstdint>
#include <vector>

namespace lily::cpu {

// Seconds in which `threads` threads read `bytes` each from their own buffers, for each of `passes`.
[[nodiscard]] std::vector<double> time_reads(std::int64_t threads, std::int64_t bytes, std::int64_t passes);

}  // namespace lily::cpu
