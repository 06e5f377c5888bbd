// Source to tree. Nesting is bounded, so no source can exhaust the stack.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace sluice::jinja {

inline constexpr int kMaxParseDepth = 200;  // nested brackets, blocks and prefix operators
inline constexpr int kMaxTreeDepth = 400;   // the above, plus chains such as a + b + c + ...
inline constexpr size_t kMaxParams = 256;   // of a macro, and keyword arguments of a call

// Throws TemplateError. The source must be valid UTF-8.
Program parse_template(std::string_view source);

}  // namespace sluice::jinja
