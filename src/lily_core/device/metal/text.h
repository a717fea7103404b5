// device/metal/text.h -- strings and errors between C++ and Objective-C.
#pragma once

#import <Foundation/Foundation.h>

#include <string>

NS_ASSUME_NONNULL_BEGIN

namespace lily::device::metal {

// Empty for nil.
[[nodiscard]] std::string text_of(NSString* _Nullable string);
[[nodiscard]] std::string text_of(NSError* _Nullable error);
// Throws Error(backend) when the text is not UTF-8.
[[nodiscard]] NSString* string_of(const std::string& text);

}  // namespace lily::device::metal

NS_ASSUME_NONNULL_END
