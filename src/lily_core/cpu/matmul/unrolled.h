// cpu/matmul/unrolled.h -- a loop of a few steps, unrolled by the compiler's front end: arrays of vectors indexed only
// in such loops stay in registers.
#pragma once

namespace lily::cpu {
namespace {

template <int Value>
struct Index {
  constexpr operator int() const { return Value; }  // NOLINT: an int for every purpose
};

template <int... Values>
struct Indices {
  template <class Body>
  [[gnu::always_inline]] static inline void each(const Body& body) {
    (body(Index<Values>{}), ...);
  }
};

template <int Count, int... Values>
struct IndicesBelow : IndicesBelow<Count - 1, Count - 1, Values...> {};
template <int... Values>
struct IndicesBelow<0, Values...> : Indices<Values...> {};

// body(0), body(1) ... body(Count - 1)
template <int Count, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
  IndicesBelow<Count>::each(body);
}

}  // namespace
}  // namespace lily::cpu
