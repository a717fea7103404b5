// engine/model.cpp -- builds the backend over the mapped weights.
#include "engine/model.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "cpu/backend.h"
#include "device/open.h"
#include "gpu/gpu_backend.h"

namespace lily {
namespace {

FileAccess file_access(const std::string& weights) {
  if (weights == "mmap") return FileAccess::map;
  if (weights == "read") return FileAccess::read;
  throw Error(ErrorKind::config, "weights must be \"mmap\" or \"read\", not \"" + weights + "\"");
}

}  // namespace

Model::Model(ModelConfig config, const CheckpointSource& source, EngineOptions options)
    : Model(std::move(config), source, options, options.backend == "cpu" ? nullptr : device::open(options.backend)) {}

Model::Model(ModelConfig config, const CheckpointSource& source, EngineOptions options,
             std::shared_ptr<device::Device> device)
    : config_(std::move(config)),
      options_(std::move(options)),
      weights_(ModelWeights::bind(config_, source, file_access(options_.weights))),
      process_id_(::getpid()) {
  resolve_context();
  backend_ = device == nullptr ? cpu::make_backend(config_, weights_, options_)
                               : gpu::make_backend(std::move(device), config_, weights_, options_);
  require_unchanged_files();  // while vectors were converted and weights were copied, too
  if (!backend_->reads_mapped_weights()) {
    for (MappedFile& file : weights_.files) file.stop_watching();
  }
  options_.copy_progress = nullptr;
  options_.compile_progress = nullptr;
}

void Model::resolve_context() {
  options_.shorten_context = options_.max_context == 0;
  if (options_.max_context == 0) options_.max_context = config_.max_position_embeddings;
  if (options_.max_context < 1 || options_.max_context > config_.max_position_embeddings) {
    throw Error(ErrorKind::config, "max_context must be between 1 and the model's max_position_embeddings, " +
                                       std::to_string(config_.max_position_embeddings) + ", not " +
                                       std::to_string(options_.max_context));
  }
  if (options_.prefill_chunk < 0) throw Error(ErrorKind::config, "prefill_chunk must be at least 1 (0: default)");
}

void Model::require_unchanged_files() const {
  for (const MappedFile& file : weights_.files) file.require_unchanged();
}

void Model::require_same_process() const {
  if (::getpid() != process_id_) {
    throw Error(
        ErrorKind::backend,
        "this model was loaded before the process forked; load it in the child (multiprocessing: use \"spawn\")");
  }
}

}  // namespace lily
