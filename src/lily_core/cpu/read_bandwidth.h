// cpu/read_bandwidth.h -- how fast threads read memory together: the limit of decoding.
#pragma once

#include <cstdint>
#include <vector>

namespace lily::cpu {

// Seconds that `threads` threads take to read `bytes` each, from buffers of their own, once for each of `passes`.
[[nodiscard]] std::vector<double> time_reads(std::int64_t threads, std::int64_t bytes, std::int64_t passes);

}  // namespace lily::cpu
