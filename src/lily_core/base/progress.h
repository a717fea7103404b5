// base/progress.h -- callbacks that long work calls on its caller's thread; it stops if they throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lily {

using CopyProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;  // bytes
using CompileProgress = std::function<void(std::size_t done, std::size_t total)>;   // kernels

}  // namespace lily
