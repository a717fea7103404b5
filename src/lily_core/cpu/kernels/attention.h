// cpu/kernels/attention.h -- attention of query rows that share one key/value head, against the cache.
//
// Online softmax over blocks of 64 positions counted from position 0. In a block every row does the same operations in
// the same order, whatever the other rows; only the tiling over rows differs. Keys and values are read once for all
// rows, 16 or 32 positions at a time, and converted into the first-level cache: keys to 16-bit codes, values to
// float32.
#pragma once

#include <type_traits>

#include "cpu/kernels.h"
#include "cpu/kernels/attention_codes.h"
#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/simd.h"

namespace lily::cpu {
namespace {

constexpr std::int64_t attention_block = 64;       // positions between rescalings
constexpr std::int64_t attention_slice = 16;       // positions converted at a time
constexpr std::int64_t attention_many_rows = 64;   // from this number of query rows
constexpr std::int64_t attention_wide_slice = 32;  // on, so many are: each slice reads and writes all rows' data
constexpr std::int64_t attention_tile_rows = 4;    // query rows in registers

// Scratch. Rows are padded with zeros to whole strips, which keeps every inner loop free of tails.
struct AttentionScratch {
  std::int64_t width;      // head_dim rounded up to strips of codes
  float* sum;              // [rows, width] not yet normalised output
  float* scores;           // [rows, attention_block]
  float* slice;            // [positions, width] keys or values
  float* key_units;        // [positions] of a slice
  float* query_units;      // [rows]
  float* maximum;          // [rows]
  float* total;            // [rows]
  std::int16_t* query;     // [rows, width]
  std::int16_t* keys;      // [positions, width] a slice
  std::int32_t* pairs;     // [positions / 16, width / 2, 16] the same slice transposed
  std::int64_t positions;  // of a slice
};

inline std::int64_t attention_float_bytes(std::int64_t rows, std::int64_t width) {
  return 4 * (rows * (width + attention_block) + attention_wide_slice * (width + 1) + 3 * round_up(rows, strip_width));
}

inline std::size_t attention_scratch_bytes(std::int64_t rows, std::int64_t head_dim) {
  const std::int64_t width = round_up(head_dim, code_strip);
  const std::int64_t codes = (rows + 2 * attention_wide_slice) * width;
  return static_cast<std::size_t>(attention_float_bytes(rows, width) + 2 * codes);
}

inline AttentionScratch divide_attention_scratch(const AttentionArgs& args) {
  AttentionScratch scratch{};
  scratch.width = round_up(args.head_dim, code_strip);
  scratch.sum = reinterpret_cast<float*>(args.scratch);
  scratch.scores = scratch.sum + args.rows * scratch.width;
  scratch.slice = scratch.scores + args.rows * attention_block;
  scratch.key_units = scratch.slice + attention_wide_slice * scratch.width;
  scratch.query_units = scratch.key_units + attention_wide_slice;
  scratch.maximum = scratch.query_units + round_up(args.rows, strip_width);
  scratch.total = scratch.maximum + round_up(args.rows, strip_width);
  scratch.query = reinterpret_cast<std::int16_t*>(args.scratch + attention_float_bytes(args.rows, scratch.width));
  scratch.keys = scratch.query + args.rows * scratch.width;
  scratch.pairs = reinterpret_cast<std::int32_t*>(scratch.keys + attention_wide_slice * scratch.width);
  scratch.positions = args.rows < attention_many_rows ? attention_slice : attention_wide_slice;
  return scratch;
}

// A row of keys or values as float32, zeros behind it; returns the squares of its 16 lanes, if wanted. The type is
// fixed before the loop: nothing but vectors in it.
template <class V, bool squared, KvType type>
Strip<V> widen_row_of(const std::uint16_t* from, std::int64_t head_dim, std::int64_t width, float* to) {
  const std::int64_t whole = head_dim / strip_width * strip_width;
  auto squares = Strip<V>::broadcast(0.0F);
  const auto take = [&](std::int64_t d, const Strip<V>& value) {
    value.store(to + d);
    if constexpr (squared) squares = fma(value, value, squares);
  };
#pragma GCC unroll 4
  for (std::int64_t d = 0; d < whole; d += strip_width) take(d, load_kv<V>(from + d, type));
  for (std::int64_t d = whole; d < width; d += strip_width) take(d, load_kv_first<V>(from + d, type, head_dim - d));
  return squares;
}

template <class V, bool squared>
Strip<V> widen_row(const std::uint16_t* from, const AttentionArgs& args, std::int64_t width, float* to) {
  if (args.kv_type == KvType::float16) {
    return widen_row_of<V, squared, KvType::float16>(from, args.head_dim, width, to);
  }
  return widen_row_of<V, squared, KvType::bfloat16>(from, args.head_dim, width, to);
}

// Memory that is read next. It is prefetched piece by piece during arithmetic: all at once it would wait, since a
// processor can have only few reads in flight.
struct FetchAhead {
  static constexpr std::int64_t piece_bytes = 1024;
  const std::byte* next = nullptr;
  std::int64_t left = 0;  // bytes

  void piece() {
    const std::byte* const end = next + smaller(left, piece_bytes);
    left -= end - next;
    for (; next < end; next += 64) __builtin_prefetch(next, 0, 2);
  }
};

// Walks the positions in order, across spans.
struct SpanCursor {
  const KvSpan* span;
  std::int64_t index = 0;  // inside the span

  const std::uint16_t* row(const AttentionArgs& args, bool keys) const {
    return (keys ? span->keys : span->values) + index * args.head_dim;
  }

  // The rows of the next slice, as far as they lie in one span.
  FetchAhead next_slice(const AttentionArgs& args, bool keys, std::int64_t positions) const {
    SpanCursor ahead{span, index + positions};
    while (ahead.index >= ahead.span->count) {
      ahead.index -= ahead.span->count;
      if (++ahead.span == args.spans + args.span_count) return {};
    }
    const std::int64_t rows = smaller(positions, ahead.span->count - ahead.index);
    return {reinterpret_cast<const std::byte*>(ahead.row(args, keys)), rows * args.head_dim * 2};
  }

  // The next row of keys or values.
  const std::uint16_t* next_row(const AttentionArgs& args, bool keys) {
    while (index >= span->count) {
      ++span;
      index = 0;
    }
    const std::uint16_t* found = row(args, keys);
    ++index;
    return found;
  }

  // The next `count` rows of values as floats; what is behind them in the slice is zeros.
  template <class V>
  void read_values(const AttentionArgs& args, std::int64_t count, const AttentionScratch& scratch) {
    for (std::int64_t p = 0; p < count; ++p) {
      widen_row<V, false>(next_row(args, false), args, scratch.width, scratch.slice + p * scratch.width);
    }
    for (std::int64_t i = count * scratch.width; i < scratch.positions * scratch.width; ++i) scratch.slice[i] = 0.0F;
  }

  // The same of keys as codes.
  template <class V>
  void read_keys(const AttentionArgs& args, std::int64_t count, const AttentionScratch& scratch) {
    alignas(64) float squares[encoded_together * strip_width];
    for (std::int64_t first = 0; first < scratch.positions; first += encoded_together) {
      for (std::int64_t p = 0; p < encoded_together; ++p) {
        float* row = scratch.slice + p * scratch.width;
        auto lanes = Strip<V>::broadcast(0.0F);
        if (first + p < count) {
          lanes = widen_row<V, true>(next_row(args, true), args, scratch.width, row);
        } else {
          for (std::int64_t d = 0; d < scratch.width; ++d) row[d] = 0.0F;
        }
        lanes.store(squares + p * strip_width);
      }
      encode_keys<V>(scratch.slice, squares, scratch.width, scratch.keys + first * scratch.width,
                     scratch.key_units + first);
    }
  }
};

// Rows [begin, end) that see the same number of positions of the block.
struct RowRun {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t seen;  // positions of the block, <= attention_block
};

inline RowRun next_run(const AttentionArgs& args, std::int64_t begin, std::int64_t block_start) {
  RowRun run{begin, begin, smaller(args.visible[begin] - block_start, attention_block)};
  while (run.end < args.rows && smaller(args.visible[run.end] - block_start, attention_block) == run.seen) ++run.end;
  return run;
}

// Scores of `rows` rows against code_positions positions from p on of the slice, which is at `offset` of the block.
template <class V, int rows>
void score_tile(const AttentionScratch& scratch, std::int64_t row, std::int64_t p, std::int64_t offset) {
  CodeKernels<V>::template score<rows>(scratch.query + row * scratch.width, scratch.query_units + row,
                                       scratch.keys + p * scratch.width, scratch.key_units + p, scratch.width,
                                       scratch.scores + row * attention_block + offset + p, attention_block);
}

// Scores of the rows of a run against the slice of positions from `offset` on of the block.
template <class V>
void score_slice(const AttentionScratch& scratch, const RowRun& run, std::int64_t offset, FetchAhead& ahead) {
  const std::int64_t seen = smaller(run.seen - offset, scratch.positions);
  std::int64_t row = run.begin;
  for (; row + attention_tile_rows <= run.end; row += attention_tile_rows) {
    for (std::int64_t p = 0; p < seen; p += code_positions) {
      ahead.piece();
      score_tile<V, attention_tile_rows>(scratch, row, p, offset);
    }
  }
  for (; row < run.end; ++row) {
    for (std::int64_t p = 0; p < seen; p += code_positions) {
      ahead.piece();
      score_tile<V, 1>(scratch, row, p, offset);
    }
  }
}

// The same for all rows from first_row on, against the transposed slice. Positions that a row does not see get a score
// too, which is ignored.
template <class V>
void score_transposed(const AttentionArgs& args, const AttentionScratch& scratch, std::int64_t first_row,
                      std::int64_t offset, FetchAhead& ahead) {
  constexpr int rows = 8;
  const auto score = [&](auto count, std::int64_t row) {
    ahead.piece();
    CodeKernels<V>::template score_transposed<decltype(count)::value>(
        scratch.query + row * scratch.width, scratch.query_units + row, scratch.pairs, scratch.key_units, scratch.width,
        scratch.scores + row * attention_block + offset, attention_block);
  };
  CodeKernels<V>::transpose(scratch.keys, scratch.width, scratch.pairs);
  std::int64_t row = first_row;
  for (; row + rows <= args.rows; row += rows) score(std::integral_constant<int, rows>{}, row);
  for (; row < args.rows; ++row) score(std::integral_constant<int, 1>{}, row);
}

// Scores of the block to weights exp(score - maximum), and what came before to the new maximum.
template <class V>
void rescale_row(const AttentionScratch& scratch, std::int64_t row, std::int64_t seen) {
  float* scores = scratch.scores + row * attention_block;
  const float before = scratch.maximum[row];
  const float block_maximum = largest<V>(scores, seen);
  const float maximum = before > block_maximum ? before : block_maximum;
  const float block_total = exp_shifted<V>(scores, seen, maximum, scores);
  if (before == maximum) {
    scratch.total[row] += block_total;
    return;
  }
  alignas(64) float factor[strip_width];
  const auto correction = exp(Strip<V>::broadcast(before - maximum));
  correction.store(factor);
  scratch.total[row] = scratch.total[row] * factor[0] + block_total;
  scratch.maximum[row] = maximum;
  float* sum = scratch.sum + row * scratch.width;
  for (std::int64_t d = 0; d < scratch.width; d += strip_width) (Strip<V>::load(sum + d) * correction).store(sum + d);
}

// sum[row, column...] += weights[row, position] * values[position, column...], position after position.
template <class V, int rows, int vectors>
void add_values(const float* weights, std::int64_t seen, const float* values, std::int64_t width, float* to) {
  V sum[rows][vectors];
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sum[r][v] = V::load(to + r * width + v * V::width);
  }
  for (std::int64_t p = 0; p < seen; ++p) {
    V value[vectors];
    for (int v = 0; v < vectors; ++v) value[v] = V::load(values + p * width + v * V::width);
    for (int r = 0; r < rows; ++r) {
      const V weight = V::broadcast(weights[r * attention_block + p]);
      for (int v = 0; v < vectors; ++v) sum[r][v] = fma(weight, value[v], sum[r][v]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) sum[r][v].store(to + r * width + v * V::width);
  }
}

template <class V, int rows>
void add_values_to_rows(const AttentionScratch& scratch, std::int64_t row, std::int64_t offset, std::int64_t seen,
                        FetchAhead& ahead) {
  const float* weights = scratch.scores + row * attention_block + offset;
  float* to = scratch.sum + row * scratch.width;
  std::int64_t column = 0;
  for (; column + V::value_vectors * V::width <= scratch.width; column += V::value_vectors * V::width) {
    ahead.piece();
    add_values<V, rows, V::value_vectors>(weights, seen, scratch.slice + column, scratch.width, to + column);
  }
  for (; column < scratch.width; column += V::width) {
    add_values<V, rows, 1>(weights, seen, scratch.slice + column, scratch.width, to + column);
  }
}

template <class V>
void add_value_slice(const AttentionScratch& scratch, const RowRun& run, std::int64_t offset, FetchAhead& ahead) {
  const std::int64_t seen = smaller(run.seen - offset, scratch.positions);
  std::int64_t row = run.begin;
  for (; row + attention_tile_rows <= run.end; row += attention_tile_rows) {
    add_values_to_rows<V, attention_tile_rows>(scratch, row, offset, seen, ahead);
  }
  for (; row < run.end; ++row) add_values_to_rows<V, 1>(scratch, row, offset, seen, ahead);
}

// Rows from first_row on see something of the block at block_start.
template <class V>
void attend_block(const AttentionArgs& args, const AttentionScratch& scratch, SpanCursor& cursor,
                  std::int64_t first_row, std::int64_t block_start) {
  const std::int64_t count = smaller(args.visible[args.rows - 1] - block_start, attention_block);
  SpanCursor keys = cursor;
  for (std::int64_t offset = 0; offset < count; offset += scratch.positions) {
    FetchAhead ahead = keys.next_slice(args, true, scratch.positions);
    keys.read_keys<V>(args, smaller(count - offset, scratch.positions), scratch);
    if constexpr (CodeKernels<V>::transposes) {
      if (scratch.positions == CodeKernels<V>::transposed_positions) {
        score_transposed<V>(args, scratch, first_row, offset, ahead);
        continue;
      }
    }
    for (RowRun run{0, first_row, 0}; run.end < args.rows;) {
      run = next_run(args, run.end, block_start);
      if (run.seen > offset) score_slice<V>(scratch, run, offset, ahead);
    }
  }
  for (std::int64_t row = first_row; row < args.rows; ++row) {
    rescale_row<V>(scratch, row, smaller(args.visible[row] - block_start, attention_block));
  }
  for (std::int64_t offset = 0; offset < count; offset += scratch.positions) {
    FetchAhead ahead = cursor.next_slice(args, false, scratch.positions);
    cursor.read_values<V>(args, smaller(count - offset, scratch.positions), scratch);
    for (RowRun run{0, first_row, 0}; run.end < args.rows;) {
      run = next_run(args, run.end, block_start);
      if (run.seen > offset) add_value_slice<V>(scratch, run, offset, ahead);
    }
  }
}

template <class V>
void attention(const AttentionArgs& args) {
  if (args.rows <= 0) return;
  const AttentionScratch scratch = divide_attention_scratch(args);
  const auto zero = Strip<V>::broadcast(0.0F);
  for (std::int64_t row = 0; row < args.rows; ++row) {
    for (std::int64_t d = 0; d < scratch.width; d += strip_width) {
      Strip<V>::load_first(args.query[row] + d, args.head_dim - d).store(scratch.slice + d);
      zero.store(scratch.sum + row * scratch.width + d);
    }
    scratch.query_units[row] = encode_query<V>(scratch.slice, scratch.width, scratch.query + row * scratch.width);
    scratch.maximum[row] = -__builtin_inff();
    scratch.total[row] = 0.0F;
  }
  SpanCursor cursor{args.spans};
  std::int64_t first_row = 0;
  for (std::int64_t start = 0; start < args.visible[args.rows - 1]; start += attention_block) {
    while (args.visible[first_row] <= start) ++first_row;
    attend_block<V>(args, scratch, cursor, first_row, start);
  }
  for (std::int64_t row = 0; row < args.rows; ++row) {
    const auto factor = Strip<V>::broadcast(1.0F / scratch.total[row]);
    for (std::int64_t d = 0; d < args.head_dim; d += strip_width) {
      const auto sum = Strip<V>::load(scratch.sum + row * scratch.width + d);
      (sum * factor).store_first(args.out[row] + d, args.head_dim - d);
    }
  }
}

}  // namespace
}  // namespace lily::cpu
