// device/metal/pipeline.mm -- specialises a kernel, builds its pipeline and reads its slots off the reflection.
#include "device/metal/pipeline.h"

#include "device/metal/text.h"
#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

constexpr NSUInteger kSimdWidth = 32;

[[noreturn]] void refuse(const std::string& kernel, const std::string& reason) {
  throw Error(ErrorKind::backend, "kernel " + kernel + ": " + reason);
}

void set_constant(MTLFunctionConstantValues* values, const FunctionConstant& constant, ConstantType type) {
  const std::uint32_t index = constant.index;
  if (type == ConstantType::boolean) {
    const bool value = constant.value != 0;
    [values setConstantValue:&value type:MTLDataTypeBool atIndex:index];
  } else {
    const MTLDataType data_type = type == ConstantType::signed_integer ? MTLDataTypeInt : MTLDataTypeUInt;
    [values setConstantValue:&constant.value type:data_type atIndex:index];
  }
}

id<MTLFunction> make_function(id<MTLLibrary> library, const LibrarySource& source, const std::string& kernel,
                              std::span<const FunctionConstant> constants) {
  MTLFunctionConstantValues* values = [[MTLFunctionConstantValues alloc] init];
  for (const FunctionConstant& constant : constants) {
    const auto declared = source.constants.find(constant.index);
    if (declared != source.constants.end()) set_constant(values, constant, declared->second);
  }
  NSError* error = nil;
  id<MTLFunction> function = [library newFunctionWithName:string_of(kernel)
                                                     constantValues:values
                                                              error:&error];
  if (function == nil) refuse(kernel, text_of(error));
  return function;
}

std::vector<SlotUse> slots_of(MTLComputePipelineReflection* _Nullable reflection) {
  std::vector<SlotUse> slots;
  if (reflection == nil) return slots;
  NSArray<id<MTLBinding>>* bindings = reflection.bindings;
  for (NSUInteger i = 0; i < bindings.count; ++i) {
    id<MTLBinding> binding = bindings[i];
    if (binding.type != MTLBindingTypeBuffer) continue;
    slots.push_back({.index = static_cast<std::uint32_t>(binding.index),
                     .written = binding.access != MTLBindingAccessReadOnly});
  }
  return slots;
}

// Also says what the kernel does with its slots.
id<MTLComputePipelineState> make_state(id<MTLDevice> device, id<MTLFunction> function, const std::string& kernel,
                                       std::vector<SlotUse>& slots) {
  MTLComputePipelineDescriptor* descriptor = [[MTLComputePipelineDescriptor alloc] init];
  descriptor.label = string_of(kernel);
  descriptor.computeFunction = function;
  descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
  NSError* error = nil;
  MTLAutoreleasedComputePipelineReflection reflection = nil;
  id<MTLComputePipelineState> state =
      [device newComputePipelineStateWithDescriptor:descriptor
                                            options:MTLPipelineOptionBindingInfo
                                         reflection:&reflection
                                              error:&error];
  if (state == nil) refuse(kernel, text_of(error));
  slots = slots_of(reflection);
  return state;
}

}  // namespace

MetalPipeline::MetalPipeline(id<MTLDevice> device, id<MTLLibrary> library, const LibrarySource& source,
                             const std::string& kernel, std::span<const FunctionConstant> constants)
    : name_(kernel),
      state_(make_state(device, make_function(library, source, kernel, constants), kernel, slots_)),
      max_threads_(static_cast<std::uint32_t>(state_.maxTotalThreadsPerThreadgroup)) {
  if (state_.threadExecutionWidth != kSimdWidth) {
    refuse(kernel, "this GPU runs it " + std::to_string(state_.threadExecutionWidth) + " threads wide, Lily needs 32");
  }
  if (state_.staticThreadgroupMemoryLength > device.maxThreadgroupMemoryLength) {
    refuse(kernel, "it needs " + std::to_string(state_.staticThreadgroupMemoryLength) +
                       " bytes of threadgroup memory, this GPU has " +
                       std::to_string(device.maxThreadgroupMemoryLength));
  }
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
