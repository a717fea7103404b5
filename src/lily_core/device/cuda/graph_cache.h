// device/cuda/graph_cache.h -- repeated passes as CUDA graphs: one call launches all of their kernels.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/cuda/driver.h"
#include "device/cuda/launch_list.h"

namespace lily::device::cuda {

// A graph is made when a pass is submitted for the second time: most prompts are unique passes. A decode step
// that has changed a little (the context has grown past a split) takes over the graph of an older one.
class GraphCache {
 public:
  explicit GraphCache(std::shared_ptr<const Context> context);
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  // The graph to launch; null: launch the kernels one by one. Throws Error(backend). The context is in use.
  [[nodiscard]] GraphExecHandle* find(LaunchList& list);

 private:
  class Graph;

  [[nodiscard]] Graph* take_over(LaunchList& list);
  [[nodiscard]] bool seen_before(const LaunchList& list);

  std::shared_ptr<const Context> context_;
  std::vector<std::unique_ptr<Graph>> graphs_;  // the latest used last
  std::deque<std::uint64_t> seen_;              // hashes of passes
};

}  // namespace lily::device::cuda
