// engine/model.h -- a loaded model: config, mapped weights and the backend that runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "base/backend.h"
#include "base/engine_options.h"
#include "device/device.h"
#include "weights/config.h"
#include "weights/sources.h"
#include "weights/weights.h"

namespace lily {

class Model {
 public:
  // Maps the checkpoint and prepares the backend; reads no weight but the small vectors.
  Model(ModelConfig config, const CheckpointSource& source, EngineOptions options);
  // On a device that the caller has opened; options.backend is only a name.
  Model(ModelConfig config, const CheckpointSource& source, EngineOptions options,
        std::shared_ptr<device::Device> device);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }  // with every 0 and "" resolved
  [[nodiscard]] Backend& backend() { return *backend_; }
  // Held for every chunk: the backend's working memory serves one chunk at a time.
  [[nodiscard]] std::mutex& compute_mutex() { return compute_mutex_; }
  // Throws Error(backend) in a forked child: the threads of the parent do not exist there.
  void require_same_process() const;
  // Throws Error(checkpoint) if a file changed that the weights still lie in; a microsecond for each.
  void require_unchanged_files() const;

 private:
  void resolve_context();

  ModelConfig config_;
  EngineOptions options_;
  ModelWeights weights_;
  std::unique_ptr<Backend> backend_;
  std::mutex compute_mutex_;
  std::int64_t process_id_;
};

}  // namespace lily
