// Bodies of forms (multipart/form-data, RFC 7578), read strictly: what two readers could see
// differently is refused. Pure functions; parts are views into the body.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct FormPart {
  std::string name;
  std::string filename;  // as it was sent; empty: none
  std::string_view data;
};

bool is_form(std::string_view content_type);
// At most 16 parts, each name once.
Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body);

}  // namespace sluice
