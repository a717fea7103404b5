// device/metal/tensor_verdict.h -- whether matrix products use tensor operations on this GPU, and why.
//
// Families and versions say what should work; wrong results have been seen where all of them were right. So the kernels
// are compiled and compared with the others, once for each system build, GPU and set of sources.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lily::device::metal {

// LILY_METAL_TENSOR: "0" is off, "1" is on wherever the kernels compile, unset or empty is automatic.
enum class TensorSwitch : std::uint8_t { automatic, off, on };
// Throws Error(config) for any other text. Null counts as unset.
[[nodiscard]] TensorSwitch parse_tensor_switch(const char* text);

struct TensorVerdict {
  bool enabled = false;
  std::string reason;
};

// What deciding asks of the machine.
class TensorProbe {
 public:
  virtual ~TensorProbe() = default;
  // macOS 26.2 or later, the first whose compiler gets tensor operations right.
  [[nodiscard]] virtual bool has_system() = 0;
  // Apple10 (M5) or later, the first with hardware for them.
  [[nodiscard]] virtual bool has_hardware() = 0;
  // The compiler's message, empty when the library and its pipelines were made.
  [[nodiscard]] virtual std::string compile() = 0;
  // What differed from the other kernels, empty for nothing.
  [[nodiscard]] virtual std::string self_test() = 0;
};

// Verdicts by key in a small file. A file that cannot be read or written costs time, nothing else; nor does an empty
// path.
class VerdictCache {
 public:
  explicit VerdictCache(std::filesystem::path file) : file_(std::move(file)) {}
  [[nodiscard]] std::optional<TensorVerdict> find(const std::string& key) const;
  void store(const std::string& key, const TensorVerdict& verdict) const;
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

// Never throws for what the probe meets.
[[nodiscard]] TensorVerdict decide_tensor(TensorProbe& probe, TensorSwitch wanted, const VerdictCache& cache,
                                          const std::string& key);

}  // namespace lily::device::metal
