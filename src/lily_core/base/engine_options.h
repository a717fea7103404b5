// base/engine_options.h -- what a model is loaded with: its backend, limits, and how weights are read.
#pragma once

#include <cstdint>
#include <string>

#include "base/gpu_options.h"
#include "base/progress.h"

namespace lily {

struct EngineOptions {
  std::string backend = "cpu";
  std::int64_t threads = 0;               // 0: one for each physical core available to the process
  std::int64_t prefill_chunk = 0;         // tokens; 0: the backend's choice
  std::int64_t max_context = 0;           // tokens; 0: the config's max_position_embeddings
  std::string weights = "mmap";           // "mmap": used in the mapped files; "read": read into memory first
  std::string cpu_isa;                    // empty: LILY_CPU_ISA or the best the processor has
  std::string kv_cache_type = "float16";  // of the CPU backend: "float16" or "bfloat16"
  gpu::Options gpu;                       // of the other backends
  CopyProgress copy_progress;             // called while weights are copied to the device; not kept
  CompileProgress compile_progress;       // called while the device compiles; not kept
  bool shorten_context = false;           // max_context may be lowered to what fits in the device's memory
};

}  // namespace lily
