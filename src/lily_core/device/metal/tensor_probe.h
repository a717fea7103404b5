// device/metal/tensor_probe.h -- asks this machine what deciding about tensor operations needs.
#pragma once

#import <Metal/Metal.h>

#include <filesystem>
#include <string>

#include "device/device.h"
#include "device/metal/source_bundle.h"
#include "device/metal/tensor_verdict.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

class MachineTensorProbe final : public TensorProbe {
 public:
  MachineTensorProbe(id<MTLDevice> metal, Device& device, const SourceBundle& sources)
      : metal_(metal), device_(device), sources_(sources) {}

  [[nodiscard]] bool has_system() override;
  [[nodiscard]] bool has_hardware() override;
  [[nodiscard]] std::string compile() override;
  [[nodiscard]] std::string self_test() override;

  // A verdict holds for one system build, GPU and set of sources.
  [[nodiscard]] std::string cache_key() const;

 private:
  id<MTLDevice> metal_;
  Device& device_;
  const SourceBundle& sources_;
};

// In the user's folder for caches; empty for a user who has none.
[[nodiscard]] std::filesystem::path verdict_file();

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
