// The values of JSON Schema's `format`, as anchored patterns.
#pragma once

#include <optional>
#include <string_view>

namespace sluice::constrain {

struct FormatRow {
  std::string_view name;
  // Matches the whole string. Empty: a format of the standard that is refused.
  std::string_view pattern;
};

// Nothing for names that the standard does not define: those say nothing about validity.
std::optional<FormatRow> find_format(std::string_view name);

}  // namespace sluice::constrain
