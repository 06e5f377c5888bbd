// Values to text as Python writes them: str(), repr(), json.dumps(), '%' formatting, str.format().
// Provenance: text that mixes request strings into a container's notation is untrusted as a whole.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::jinja {

std::string float_repr(double d);
Text to_text(Meter& m, const Value& v);  // str()
Text repr(Meter& m, const Value& v);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // one level
  std::string item_separator = ", ", key_separator = ": ";
};
Text to_json(Meter& m, const Value& v, const JsonStyle& style);

// format % arg, where arg is a tuple, a mapping or one value.
Text percent_format(Meter& m, const Text& format, const Value& arg);
// One value under a format specification such as ">10.2f".
Text format_value(Meter& m, const Value& v, std::string_view spec);
// align: < > ^, or c as str.center() does it.
Text pad(Meter& m, const Text& s, size_t width, char align, std::string_view fill);
// & < > " ' as HTML entities.
Text escape_html(Meter& m, const Text& s);

}  // namespace sluice::jinja
