// device/metal/compiler.mm -- options of the compiler, and libraries by index with the threads that make them.
#include "device/metal/compiler.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/metal/text.h"
#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {
namespace {

// Set always: the default follows the SDK that the module was linked with. 4.0 is given as a number, which older SDKs
// do not name; libraries with tensor operations are compiled on systems that have it.
MTLLanguageVersion version_for(const LibrarySource& source) {
  if (source.uses_tensors()) return static_cast<MTLLanguageVersion>(4 << 16);
  if (@available(macOS 15.0, *)) return MTLLanguageVersion3_2;
  return MTLLanguageVersion3_1;
}

MTLCompileOptions* options_for(const LibrarySource& source) {
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  options.languageVersion = version_for(source);
  if (@available(macOS 15.0, *)) {
    options.mathMode = MTLMathModeSafe;
    options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
  } else {
    options.fastMathEnabled = NO;
  }
  return options;
}

}  // namespace

struct Compiler::Libraries {
  struct Entry {
    bool started = false;
    bool ended = false;
    id<MTLLibrary> _Nullable library = nil;
    std::string error;
  };
  // Nothing may escape a completion handler, and waiters must continue: without memory, the error has no text.
  void end(std::size_t index, id<MTLLibrary> _Nullable library, NSError* _Nullable error) noexcept {
    std::string text;
    try {
      if (library == nil) text = text_of(error);  // with a library it is a warning
    } catch (...) {
    }
    const std::scoped_lock lock(mutex);
    entries[index].library = library;
    entries[index].error = std::move(text);
    entries[index].ended = true;
    ended.notify_all();
  }

  std::mutex mutex;
  std::condition_variable ended;
  std::vector<Entry> entries;
};

Compiler::Compiler(id<MTLDevice> device, const SourceBundle& bundle)
    : device_(device), bundle_(bundle), libraries_(std::make_shared<Libraries>()) {
  libraries_->entries.resize(bundle.libraries().size());
}

void Compiler::start(std::size_t index) {
  {
    const std::scoped_lock lock(libraries_->mutex);
    if (libraries_->entries[index].started) return;
    libraries_->entries[index].started = true;
  }
  const LibrarySource& source = bundle_.libraries()[index];
  const std::shared_ptr<Libraries> libraries = libraries_;
  NSString* text = [NSString stringWithUTF8String:source.text.c_str()];
  if (text == nil) {  // not UTF-8
    libraries->end(index, nil, nil);
    return;
  }
  [device_ newLibraryWithSource:text
                        options:options_for(source)
              completionHandler:^(id<MTLLibrary> _Nullable library, NSError* _Nullable error) {
                @autoreleasepool {
                  libraries->end(index, library, error);
                }
              }];
}

id<MTLLibrary> Compiler::library(std::size_t index) {
  start(index);
  for (std::size_t i = 0; i < bundle_.libraries().size(); ++i) {
    if (!bundle_.libraries()[i].uses_tensors()) start(i);
  }
  std::unique_lock lock(libraries_->mutex);
  const Libraries::Entry& entry = libraries_->entries[index];
  libraries_->ended.wait(lock, [&] { return entry.ended; });
  id<MTLLibrary> library = entry.library;
  if (library == nil) {
    throw Error(ErrorKind::backend,
                "Metal's compiler rejects " + bundle_.libraries()[index].name + ".metal (please report this with the output of `lily doctor`; "
                "until then, load models with backend=\"cpu\"): " + entry.error);
  }
  return library;
}

std::string language_version() {
  if (@available(macOS 15.0, *)) return "3.2";
  return "3.1";
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
