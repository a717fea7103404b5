// device/metal/compiler.h -- compiles the packaged sources with the system's own compiler: all plain libraries at once,
// each on a thread of Metal's, from the first kernel that is asked for.
#pragma once

#import <Metal/Metal.h>

#include <cstddef>
#include <memory>
#include <string>

#include "device/metal/source_bundle.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class Compiler {
 public:
  // `bundle` outlives this.
  Compiler(id<MTLDevice> device, const SourceBundle& bundle);

  // Waits until the library is compiled. Throws Error(backend) with the compiler's message, file and line.
  [[nodiscard]] id<MTLLibrary> library(std::size_t index);

 private:
  struct Libraries;  // shared with the compiler's threads
  void start(std::size_t index);

  id<MTLDevice> device_;
  const SourceBundle& bundle_;
  std::shared_ptr<Libraries> libraries_;
};

// The version of Metal that the plain kernels are compiled as here, as "3.2".
[[nodiscard]] std::string language_version();

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
