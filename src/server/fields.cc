#include "server/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/str.h"

namespace sluice {

namespace {

const json::object kNothing;

std::optional<double> as_number(const json::value& v, bool or_text = false) {
  if (v.is_double()) return v.get_double();
  if (v.is_int64()) return static_cast<double>(v.get_int64());
  if (v.is_uint64()) return static_cast<double>(v.get_uint64());
  if (!or_text || !v.is_string()) return {};
  std::string_view text = v.get_string();
  double x = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (failed != std::errc() || end != text.data() + text.size() || !std::isfinite(x)) return {};
  return x;
}

std::optional<bool> as_flag(const json::value& v, bool or_text) {
  if (v.is_bool()) return v.get_bool();
  if (!or_text || !v.is_string()) return {};
  std::string_view text = v.get_string();
  if (text == "True" || text == "true" || text == "TRUE") return true;
  if (text == "False" || text == "false" || text == "FALSE") return false;
  return {};
}

// Is it one of these values: JSON with bars between?
bool is_one_of(const json::value& v, std::string_view values) {
  while (!values.empty()) {
    size_t bar = std::min(values.find('|'), values.size());
    Result<json::value> one = parse_json(values.substr(0, bar));
    std::optional<double> x = as_number(v), y = one ? as_number(*one) : std::nullopt;
    if (one && (x && y ? *x == *y : v == *one)) return true;
    values.remove_prefix(std::min(bar + 1, values.size()));
  }
  return false;
}

}  // namespace

std::optional<Token> token_id(const json::value& v) {
  if (v.is_int64() && v.get_int64() >= 0 && v.get_int64() <= INT32_MAX)
    return static_cast<Token>(v.get_int64());
  return {};
}

Fields::Fields(const json::value& body, std::optional<FieldPlace> place, Strictness strictness)
    : object_(body.is_object() ? body.get_object() : kNothing), strictness_(strictness) {
  if (!body.is_object()) fail("", "the body must be a JSON object");
  if (place) look_up(*place);
}

// Of several refused fields the first in the table is named, whatever their order in the body.
void Fields::look_up(FieldPlace place) {
  const KnownField* refused = nullptr;
  for (const auto& pair : object_) {
    const KnownField* field = find_field(pair.key(), place);
    if (!field || field->fate == FieldFate::honoured) continue;
    known_.insert(field->name);
    const json::value& v = pair.value();
    if (field->fate == FieldFate::harmless || v.is_null() || is_one_of(v, field->off)) continue;
    if (field->fate == FieldFate::refused) {
      if (!refused || field < refused) refused = field;
      continue;
    }
    std::string name(field->name), note(field->note);
    const json::value* other = object_.if_contains(field->note);
    if ((other && !other->is_null()) || aliases_.contains(field->note))
      fail(name, name + " stands for " + note + ", which is given too: send one of them");
    aliases_.emplace(field->note, Alias{field->name, &v});
  }
  if (!refused) return;
  std::string name(refused->name), note(refused->note);
  fail(name, name + " is not supported: " + note, "unsupported_parameter");
}

const json::value* Fields::get(std::string_view name) {
  known_.insert(name);
  if (auto it = aliases_.find(name); it != aliases_.end()) return it->second.value;
  const json::value* v = object_.if_contains(name);
  return v && !v->is_null() ? v : nullptr;
}

void Fields::fail(std::string_view param, std::string message, std::string code, int status) {
  if (auto it = aliases_.find(param); it != aliases_.end()) param = it->second.name;
  if (!error_) error_ = ApiError{status, std::move(message), std::string(param), std::move(code)};
}

bool Fields::flag(std::string_view name, bool& to) {
  const json::value* v = get(name);
  if (!v) return false;
  std::optional<bool> x = as_flag(*v, strictness_ == lenient);
  if (!x) return fail(name, std::string(name) + " must be true or false"), false;
  to = *x;
  return true;
}

bool Fields::text(std::string_view name, std::string& to, size_t max_bytes) {
  const json::value* v = get(name);
  if (!v) return false;
  if (!v->is_string()) return fail(name, std::string(name) + " must be a string"), false;
  if (v->get_string().size() > max_bytes) {
    fail(name, strf("%s is longer than %zu bytes", std::string(name).c_str(), max_bytes));
    return false;
  }
  to = std::string(v->get_string());
  return true;
}

bool Fields::number(std::string_view name, double& to, double lo, double hi) {
  const json::value* v = get(name);
  if (!v) return false;
  std::optional<double> x = as_number(*v, strictness_ == lenient);
  if (!x || !(*x >= lo && *x <= hi)) {
    fail(name, strf("%s must be a number from %g to %g", std::string(name).c_str(), lo, hi));
    return false;
  }
  to = *x;
  return true;
}

bool Fields::number(std::string_view name, float& to, double lo, double hi, bool above_lo) {
  double x = 0;
  if (!number(name, x, lo, hi)) return false;
  if (above_lo && !(static_cast<float>(x) > lo)) {  // 1e-50 is above 0 only until it is a float
    fail(name, strf("%s must be above %g and at most %g", std::string(name).c_str(), lo, hi));
    return false;
  }
  to = static_cast<float>(x);
  return true;
}

bool Fields::whole(std::string_view name, int& to, int64_t lo, int64_t hi) {
  const json::value* v = get(name);
  if (!v) return false;
  std::optional<double> x = as_number(*v, strictness_ == lenient);
  if (!x || std::floor(*x) != *x || !(*x >= static_cast<double>(lo)) ||
      !(*x <= static_cast<double>(hi))) {
    fail(name, strf("%s must be a whole number from %lld to %lld", std::string(name).c_str(),
                    static_cast<long long>(lo), static_cast<long long>(hi)));
    return false;
  }
  to = static_cast<int>(*x);
  return true;
}

bool Fields::ids(std::string_view name, std::vector<Token>& to, size_t max) {
  const json::value* v = get(name);
  if (!v) return false;
  if (!v->is_array() || v->get_array().size() > max) {
    fail(name, strf("%s must be a list of at most %zu token ids", std::string(name).c_str(), max));
    return false;
  }
  std::vector<Token> list;
  list.reserve(v->get_array().size());
  for (const json::value& x : v->get_array()) {
    std::optional<Token> id = token_id(x);
    if (!id) return fail(name, std::string(name) + " must hold token ids only"), false;
    list.push_back(*id);
  }
  to = std::move(list);
  return true;
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> out;
  for (const auto& pair : object_) {
    if (!known_.contains(pair.key()) && out.size() < 16) out.emplace_back(pair.key());
  }
  return out;
}

}  // namespace sluice
