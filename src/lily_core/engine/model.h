// engine/model.h -- a loaded model: config, mapped weights and the backend that runs it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "device/device.h"
#include "engine/backend.h"
#include "engine/config.h"
#include "engine/sources.h"
#include "engine/weights.h"
#include "gpu/options.h"

namespace lily {

struct EngineOptions {
  std::string backend = "cpu";
  std::int64_t threads = 0;                  // 0: one for each physical core available to the process
  std::int64_t prefill_chunk = 0;            // tokens; 0: the backend's choice
  std::int64_t max_context = 0;              // tokens; 0: the config's max_position_embeddings
  std::string weights = "mmap";              // "mmap": used in the mapped files; "read": read into memory first
  std::string cpu_isa;                       // empty: LILY_CPU_ISA or the best the processor has
  std::string kv_cache_type = "float16";     // of the CPU backend: "float16" or "bfloat16"
  gpu::Options gpu;                          // of the other backends
  device::CopyProgress copy_progress;        // told while weights are copied to the device; not kept
  device::CompileProgress compile_progress;  // told while the device compiles; not kept
  bool shorten_context = false;              // max_context may become what the device's memory has room for
};

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
