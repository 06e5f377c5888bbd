// JSON values (Boost.JSON, compiled once in json.cc) and parsing with our errors and limits.
#pragma once

#include <string_view>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/result.h"

namespace sluice {

namespace json = boost::json;

// Nesting is bounded (64); invalid UTF-8 and trailing text are errors.
Result<json::value> parse_json(std::string_view text);

}  // namespace sluice
