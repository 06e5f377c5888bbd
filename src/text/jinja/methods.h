// Tables of methods, and the methods that one file's table takes from another. For methods.cc and
// the files it is split into; find_method() (eval.h) is what others call.
#pragma once

#include <string_view>
#include <unordered_map>
#include <utility>

#include "text/jinja/eval.h"

namespace sluice::jinja {

using MethodTable = std::unordered_map<std::string_view, Function>;

const MethodTable& string_methods();         // string_methods.cc
const MethodTable& string_search_methods();  // string_search.cc

// codec.cc
Value str_encode(Machine& m, const Value& self, CallArgs& args);
Value bytes_decode(Machine& m, const Value& self, CallArgs& args);

// A string that is markup where `self` is.
inline Value same_kind(Machine& m, const Value& self, Text t) {
  return make_string(m.meter, std::move(t), is_markup(self));
}

}  // namespace sluice::jinja
