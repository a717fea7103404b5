// device/metal/text.mm -- conversions of text.
#include "device/metal/text.h"

#include "base/error.h"

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

std::string text_of(NSString* _Nullable string) {
  if (string == nil) return "";
  const char* characters = string.UTF8String;
  return characters == nullptr ? "" : characters;
}

std::string text_of(NSError* _Nullable error) {
  if (error == nil) return "no reason given";
  return text_of(error.localizedDescription);
}

NSString* string_of(const std::string& text) {
  NSString* string = [NSString stringWithUTF8String:text.c_str()];
  if (string == nil) throw Error(ErrorKind::backend, "a text for Metal is not valid UTF-8: " + text.substr(0, 80));
  return string;
}

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
