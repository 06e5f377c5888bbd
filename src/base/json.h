// JSON values (Boost.JSON, compiled once in json.cc) and parsing with our errors and limits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "base/result.h"

namespace sluice {

namespace json = boost::json;

// Limits of one text. The defaults are for files; kRequestJson is for text from others.
struct JsonLimits {
  uint64_t max_values = UINT64_MAX;  // of all kinds; each takes 24 bytes, twice that while parsing
  // Pairs of keys in one object, summed over all objects: the number of comparisons when every key
  // collides. Boost.JSON hashes keys with FNV-1a from the address of the table, which an
  // attacker can guess in part, and its hash cannot be replaced.
  uint64_t max_key_pairs = UINT64_MAX;
};

// An object may have about 11,580 keys, a text 1.5 M values (8 MiB of token ids have 1.4 M).
inline constexpr JsonLimits kRequestJson{.max_values = 3u << 19, .max_key_pairs = 1u << 26};

// Nesting is bounded (64); invalid UTF-8 and trailing text are errors. Of equal keys the last one
// counts.
Result<json::value> parse_json(std::string_view text, const JsonLimits& limits = {});

// The value as text, numbers as people write them: 0.7, where json::serialize() has 7E-1. The same
// digits: those that give the same double.
std::string plain_json(const json::value& value);
std::string plain_json(const json::object& object);

}  // namespace sluice
