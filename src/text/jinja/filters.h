// Filters, in two tables: text and numbers, and those over sequences and dicts.
#pragma once

#include <string_view>

#include "text/jinja/eval.h"

namespace sluice::jinja {

Function find_sequence_filter(std::string_view name);
Function find_layout_filter(std::string_view name);

}  // namespace sluice::jinja
