// device/open.cpp -- opens a device by name.
#include "device/open.h"

#include "base/error.h"
#ifdef LILY_HAS_CUDA
#include "device/cuda.h"
#include "device/cuda/driver.h"
#endif
#ifdef LILY_HAS_METAL
#include "device/metal.h"
#endif
#ifdef LILY_HAS_SIM
#include "device/sim.h"
#endif

namespace lily::device {
namespace {

#ifdef LILY_HAS_CUDA
// Opening the device says what is missing; here only whether there is a GPU counts.
bool has_cuda() {
  try {
    static_cast<void>(cuda::Driver::load());
    return true;
  } catch (const Error&) {
    return false;
  }
}
#endif

}  // namespace

std::vector<std::string> available_devices() {
  std::vector<std::string> names;
#ifdef LILY_HAS_METAL
  if (has_metal()) names.emplace_back("metal");
#endif
#ifdef LILY_HAS_CUDA
  if (has_cuda()) names.emplace_back("cuda");
#endif
#ifdef LILY_HAS_SIM
  names.emplace_back("sim");
#endif
  return names;
}

std::shared_ptr<Device> open(const std::string& name) {
#ifdef LILY_HAS_METAL
  if (name == "metal") return open_metal();
#endif
#ifdef LILY_HAS_CUDA
  if (name == "cuda") return std::make_shared<CudaDevice>(CudaOptions{});
#endif
#ifdef LILY_HAS_SIM
  if (name == "sim") return std::make_shared<SimDevice>(SimOptions{});
#endif
  std::string message = "backend \"" + name + "\" is not part of this build; available: \"cpu\"";
  for (const std::string& available : available_devices()) message += ", \"" + available + "\"";
  throw Error(ErrorKind::backend, message);
}

}  // namespace lily::device
