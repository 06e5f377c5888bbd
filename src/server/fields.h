// Reads the fields of a JSON object with checks; the first thing wrong is kept, all after it is
// ignored. A null counts as absent. Fields of `place` are first looked up in the table of known
// fields: one that is refused there is wrong, and one that is an alias is found by its other
// name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/json.h"
#include "server/field_table.h"
#include "server/openai.h"

namespace sluice {

class Fields {
 public:
  enum Strictness : bool {
    strict,
    lenient,  // "True" is true and "0.5" a number, as clients of the first such servers write them
  };
  explicit Fields(const json::value& body,
                  std::optional<FieldPlace> place = {},
                  Strictness strictness = strict);

  // The value, or null; the field counts as known from now on.
  const json::value* get(std::string_view name);
  bool flag(std::string_view name, bool& to);
  bool text(std::string_view name, std::string& to, size_t max_bytes = 1024);
  bool number(std::string_view name, float& to, double lo, double hi, bool above_lo = false);
  bool number(std::string_view name, double& to, double lo, double hi);
  bool whole(std::string_view name, int& to, int64_t lo, int64_t hi);
  bool ids(std::string_view name, std::vector<Token>& to, size_t max);

  void fail(std::string_view param, std::string message, std::string code = {}, int status = 400);
  bool failed() const { return error_.has_value(); }
  Refusal& error() { return error_; }
  std::vector<std::string> unknown() const;
  const json::object& object() const { return object_; }

 private:
  struct Alias {
    std::string_view name;  // as it was sent
    const json::value* value;
  };
  void look_up(FieldPlace place);

  const json::object& object_;
  Strictness strictness_;
  std::unordered_set<std::string_view> known_;
  std::unordered_map<std::string_view, Alias> aliases_;  // by the field they stand for
  Refusal error_;
};

// A token id, if that is what it is.
std::optional<Token> token_id(const json::value& v);

// The string `type` of a content block or an item; empty where it has none.
inline std::string_view type_of(const json::object& block) {
  const json::value* type = block.if_contains("type");
  return type && type->is_string() ? std::string_view(type->get_string()) : "";
}
// The string `name` of `o`, or null.
inline const json::string* text_field(const json::object& o, std::string_view name) {
  const json::value* v = o.if_contains(name);
  return v ? v->if_string() : nullptr;
}

}  // namespace sluice
