// cpu/compute.h -- what the blocks compute with: kernels, threads with their own scratch memory, parallel products.
#pragma once

#include <initializer_list>
#include <vector>

#include "cpu/activations.h"
#include "cpu/aligned_buffer.h"
#include "cpu/kernels.h"
#include "cpu/kv_cache.h"
#include "cpu/thread_pool.h"
#include "weights/config.h"

namespace lily::cpu {

// Weight rows of one task: enough to pay for scheduling it, few enough to balance the threads.
inline constexpr std::int64_t kTaskRows = 4 * kRowTile;

// Memory that one worker thread uses inside a task.
struct WorkerScratch {
  AlignedBuffer<std::byte> matmul;
  AlignedBuffer<std::byte> attention;
  AlignedBuffer<float> tile;  // [rows, weight rows of a task]
  std::vector<KvSpan> spans;
  std::vector<const float*> queries;  // [rows]
  std::vector<float*> outputs;        // [rows]
  std::vector<std::int64_t> visible;  // [rows]
};

// One weight matrix of a parallel product: out[m, n] = (weight x[m])[n], or out += if accumulate.
struct Product {
  const Matrix* weight;
  float* out;  // [rows, weight->rows]
  bool accumulate = false;
};

// Weight rows [begin, end) of one product of activations, and what the same thread probably reads after them.
struct WeightBlock {
  const Matrix& weight;
  std::int64_t begin;
  std::int64_t end;
  const Matrix* next_weight = nullptr;
  std::int64_t next_row = 0;
};

class Compute {
 public:
  Compute(const ModelConfig& config, const KernelTable& kernels, std::int64_t threads);

  [[nodiscard]] const KernelTable& kernels() const { return kernels_; }
  [[nodiscard]] std::int64_t threads() const { return pool_.size(); }
  [[nodiscard]] WorkerScratch& scratch(std::int64_t worker) { return scratch_[static_cast<std::size_t>(worker)]; }
  // Bytes of the threads' scratch memory held now.
  [[nodiscard]] std::size_t scratch_bytes() const;

  // body(index, worker) for each index in [0, count), by all threads.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    pool_.parallel_for(count, body);
  }
  // body(row) for each row in [begin, end).
  template <class Body>
  void for_rows(std::int64_t begin, std::int64_t end, Body&& body) {
    pool_.parallel_for(end - begin, [&](std::int64_t index, std::int64_t /*worker*/) { body(begin + index); });
  }

  void quantize(Activations& activations);
  // All products of the rows x, split over the threads.
  void multiply(std::initializer_list<Product> products, const Activations& x);
  // One block of weight rows by one thread: the rows of x at row_index [row_count], or the first row_count ones.
  void multiply_block(const WeightBlock& block, const Activations& x, const std::int32_t* row_index,
                      std::int64_t row_count, float* out, std::int64_t out_stride, std::int64_t worker);
  // Weight rows of a task for `row_count` activation rows and `weight_rows` in total: at least eight tasks per thread.
  [[nodiscard]] std::int64_t task_rows(std::int64_t weight_rows, std::int64_t row_count) const;

 private:
  const KernelTable& kernels_;
  ThreadPool pool_;
  std::vector<WorkerScratch> scratch_;  // [threads]
};

}  // namespace lily::cpu
