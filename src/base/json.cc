#include "base/json.h"

#include <boost/json/src.hpp>

#include "base/str.h"

namespace sluice {

Result<json::value> parse_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = 64;
  json::error_code ec;
  json::value value = json::parse(text, ec, {}, options);
  if (ec) return Error{400, strf("invalid JSON: %s", ec.message().c_str())};
  return value;
}

}  // namespace sluice
