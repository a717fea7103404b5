// device/metal/tensor_probe.mm -- versions and families; the numbers of newer ones, which older SDKs do not name.
#include "device/metal/tensor_probe.h"

#include <array>

#include "../../metal/lily_args.h"
#include "device/metal/tensor_self_test.h"
#include "device/metal/text.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

constexpr auto kFamilyApple10 = static_cast<MTLGPUFamily>(1010);

}  // namespace

bool MachineTensorProbe::has_system() {
  if (@available(macOS 26.2, *)) return true;
  return false;
}

bool MachineTensorProbe::has_hardware() { return [metal_ supportsFamily:kFamilyApple10]; }

std::string MachineTensorProbe::compile() {
  if (@available(macOS 26.0, *)) {
  } else {
    return "Metal 4.0 needs macOS 26 or later";  // an older system may refuse the version by an exception
  }
  const std::array<FunctionConstant, 4> constants = {{{args::kBitsIndex, 4},
                                                      {args::kGroupSizeIndex, 64},
                                                      {args::kGroupedIndex, 1},
                                                      {args::kAccumulateIndex, args::kStoreDefault}}};
  for (const char* kernel : {"gemm_affine_tensor_m32", "gemm_affine_tensor_m64"}) {
    if (!sources_.has_kernel(kernel)) return std::string("this build has no kernel ") + kernel;
    static_cast<void>(device_.pipeline(kernel, constants));
  }
  return "";
}

std::string MachineTensorProbe::self_test() { return tensor_self_test(device_); }

std::string MachineTensorProbe::cache_key() const {
  return text_of(NSProcessInfo.processInfo.operatingSystemVersionString) + "; " + text_of(metal_.name) + "; " +
         sources_.fingerprint();
}

std::filesystem::path verdict_file() {
  NSArray<NSString*>* folders = NSSearchPathForDirectoriesInDomains(NSCachesDirectory, NSUserDomainMask, YES);
  const std::string folder = text_of(folders.firstObject);
  if (folder.empty()) return {};
  return std::filesystem::path(folder) / "lily" / "metal-tensor-verdicts";
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
