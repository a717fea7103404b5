// device/msl/position.h -- positions and sizes, which devices give as three numbers, as the types that kernels declare.
#pragma once

#include "device/msl/vector.h"

namespace lily_device {

// T is uint, uint2 or uint3. Size3 has x, y and z; an index is one number.
template <class T>
struct Position {
  LILY_FN static T from(uint index) { return index; }
  template <class Size3>
  LILY_FN static T from(Size3 size) {
    return size.x;
  }
};
template <>
struct Position<metal::uint2> {
  template <class Size3>
  LILY_FN static metal::uint2 from(Size3 size) {
    return metal::uint2(size.x, size.y);
  }
};
template <>
struct Position<metal::uint3> {
  template <class Size3>
  LILY_FN static metal::uint3 from(Size3 size) {
    return metal::uint3(size.x, size.y, size.z);
  }
};
template <class T, class Value>
LILY_FN T position(Value value) {
  return Position<T>::from(value);
}

}  // namespace lily_device
