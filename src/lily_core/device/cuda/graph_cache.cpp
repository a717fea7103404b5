// device/cuda/graph_cache.cpp -- makes graphs of launch lists, and changes them.
#include "device/cuda/graph_cache.h"

#include <algorithm>
#include <utility>

namespace lily::device::cuda {
namespace {

constexpr std::size_t kMostGraphs = 8;
constexpr std::size_t kMostSeen = 32;
constexpr std::size_t kSameShape = 2;  // the two decode steps in flight keep a graph each

KernelNodeParameters node_parameters(LaunchList& list, std::size_t i) {
  const Launch& launch = list.launches()[i];
  KernelNodeParameters node;
  node.function = launch.function;
  node.grid[0] = launch.grid.x;
  node.grid[1] = launch.grid.y;
  node.grid[2] = launch.grid.z;
  node.block[0] = launch.threads;
  node.shared_bytes = launch.threadgroup_bytes;
  node.parameters = list.parameters(i);
  return node;
}

}  // namespace

class GraphCache::Graph {
 public:
  Graph(std::shared_ptr<const Context> context, LaunchList& list) : context_(std::move(context)) {
    const Driver& driver = context_->driver();
    driver.check(driver.create_graph(&graph_, 0), "making a graph");
    try {
      add_kernels(list);
      connect_stages(list);
      driver.check(driver.instantiate_graph(&exec_, graph_, 0), "making a graph ready");
    } catch (...) {
      driver.destroy_graph(graph_);
      throw;
    }
    list_ = std::make_unique<LaunchList>(list);
  }
  ~Graph() {
    const Context::Use use(*context_, std::nothrow);
    context_->driver().destroy_graph_exec(exec_);
    context_->driver().destroy_graph(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  [[nodiscard]] GraphExecHandle* exec() const { return exec_; }
  [[nodiscard]] const LaunchList& list() const { return *list_; }

  // Launches before this keep their values.
  void change_to(LaunchList& list) {
    const Driver& driver = context_->driver();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (list.same_launch(i, *list_)) continue;
      const KernelNodeParameters node = node_parameters(list, i);
      driver.check(driver.set_kernel_node(exec_, nodes_[i], &node), "changing a graph");
    }
    list_ = std::make_unique<LaunchList>(list);
  }

 private:
  void add_kernels(LaunchList& list) {
    const Driver& driver = context_->driver();
    for (std::size_t i = 0; i < list.launches().size(); ++i) {
      const KernelNodeParameters node = node_parameters(list, i);
      GraphNodeHandle* handle = nullptr;
      driver.check(driver.add_kernel_node(&handle, graph_, nullptr, 0, &node), "adding a kernel to a graph");
      nodes_.push_back(handle);
    }
  }
  // Every kernel of a stage after every kernel of the one before.
  void connect_stages(const LaunchList& list) {
    std::vector<GraphNodeHandle*> from;
    std::vector<GraphNodeHandle*> to;
    const auto launches = list.launches();
    std::size_t previous = 0;  // first launch of the stage before
    for (std::size_t begin = 0; begin < launches.size();) {
      std::size_t end = begin;
      while (end < launches.size() && launches[end].stage == launches[begin].stage) ++end;
      for (std::size_t i = previous; i < begin; ++i) {
        for (std::size_t j = begin; j < end; ++j) {
          from.push_back(nodes_[i]);
          to.push_back(nodes_[j]);
        }
      }
      previous = begin;
      begin = end;
    }
    if (from.empty()) return;
    const Driver& driver = context_->driver();
    driver.check(driver.add_dependencies(graph_, from.data(), to.data(), from.size()), "ordering a graph");
  }

  std::shared_ptr<const Context> context_;
  GraphHandle* graph_ = nullptr;
  GraphExecHandle* exec_ = nullptr;
  std::vector<GraphNodeHandle*> nodes_;
  std::unique_ptr<LaunchList> list_;
};

GraphCache::GraphCache(std::shared_ptr<const Context> context) : context_(std::move(context)) {}
GraphCache::~GraphCache() = default;

GraphExecHandle* GraphCache::find(LaunchList& list) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const std::unique_ptr<Graph>& graph) { return graph->list() == list; });
  if (found != graphs_.end()) {
    std::rotate(found, found + 1, graphs_.end());
    return graphs_.back()->exec();
  }
  if (Graph* graph = take_over(list); graph != nullptr) return graph->exec();
  if (!seen_before(list)) return nullptr;
  if (graphs_.size() == kMostGraphs) graphs_.erase(graphs_.begin());
  graphs_.push_back(std::make_unique<Graph>(context_, list));
  return graphs_.back()->exec();
}

// The graph of this shape that was not used for longest, if there are enough of the shape.
GraphCache::Graph* GraphCache::take_over(LaunchList& list) {
  std::size_t first = graphs_.size();
  std::size_t count = 0;
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    if (!graphs_[i]->list().has_shape_of(list)) continue;
    if (count++ == 0) first = i;
  }
  if (count < kSameShape) return nullptr;
  try {
    graphs_[first]->change_to(list);
  } catch (...) {  // some of its kernels may have been changed
    graphs_.erase(graphs_.begin() + static_cast<std::ptrdiff_t>(first));
    throw;
  }
  std::rotate(graphs_.begin() + static_cast<std::ptrdiff_t>(first),
              graphs_.begin() + static_cast<std::ptrdiff_t>(first) + 1, graphs_.end());
  return graphs_.back().get();
}

bool GraphCache::seen_before(const LaunchList& list) {
  if (std::find(seen_.begin(), seen_.end(), list.hash()) != seen_.end()) return true;
  if (seen_.size() == kMostSeen) seen_.pop_front();
  seen_.push_back(list.hash());
  return false;
}

}  // namespace lily::device::cuda
