#include "net/etcd.h"

#include <charconv>

#include "base/json.h"

namespace sluice {

namespace {

constexpr std::string_view kBase64 =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

Error no_etcd_answer() { return {502, "not an answer of etcd"}; }

// A whole number, as text or plainly; 0 where there is none.
int64_t whole_at(const json::object& o, std::string_view name) {
  const json::value* v = o.if_contains(name);
  if (!v) return 0;
  if (v->is_int64()) return v->as_int64();
  int64_t number = 0;
  if (v->is_string()) {
    const json::string& s = v->as_string();
    std::from_chars(s.data(), s.data() + s.size(), number);
  }
  return number;
}

Result<json::object> etcd_object(std::string_view answer) {
  Result<json::value> v = parse_json(answer, kRequestJson);
  if (!v || !v->is_object()) return no_etcd_answer();
  return std::move(v->as_object());
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t num = std::min<size_t>(3, bytes.size() - at);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < num ? static_cast<uint8_t>(bytes[at + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= num ? kBase64[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

Result<std::string> from_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  if (text.size() % 4 == 1) return Error{400, "no base64"};
  std::string out;
  uint32_t word = 0;
  for (size_t k = 0; k < text.size(); ++k) {
    const size_t digit = kBase64.find(text[k]);
    if (digit == std::string_view::npos) return Error{400, "no base64"};
    word = word << 6 | static_cast<uint32_t>(digit);
    const size_t bits = 6 * (k % 4 + 1);  // of this group of four
    if (k % 4 > 0) out += static_cast<char>(word >> bits % 8 & 255);
  }
  return out;
}

std::string etcd_range(std::string_view prefix, int limit) {
  std::string end(prefix);  // the first key behind those that begin with it
  while (end.size() > 1 && end.back() == '\xff') end.pop_back();
  end.back() = static_cast<char>(end.back() + 1);
  return json::serialize(
      json::object{{"key", to_base64(prefix)}, {"range_end", to_base64(end)}, {"limit", limit}});
}

std::string etcd_get(std::string_view key) {
  return json::serialize(json::object{{"key", to_base64(key)}});
}

Result<std::vector<std::string>> etcd_values(std::string_view answer) {
  Result<json::object> o = etcd_object(answer);
  if (!o || !o->contains("header")) return no_etcd_answer();
  std::vector<std::string> out;
  const json::value* list = o->if_contains("kvs");
  if (!list) return out;  // none
  if (!list->is_array()) return no_etcd_answer();
  for (const json::value& v : list->as_array()) {
    const json::value* value = v.is_object() ? v.as_object().if_contains("value") : nullptr;
    if (!value || !value->is_string()) continue;
    Result<std::string> text = from_base64(value->as_string());
    if (!text) return no_etcd_answer();
    out.push_back(std::move(*text));
  }
  return out;
}

std::string etcd_put(std::string_view key, std::string_view value, int64_t lease) {
  return json::serialize(json::object{
      {"key", to_base64(key)}, {"value", to_base64(value)}, {"lease", std::to_string(lease)}});
}

std::string etcd_grant(int64_t seconds) {
  return json::serialize(json::object{{"TTL", std::to_string(seconds)}});
}

std::string etcd_lease(int64_t lease) {
  return json::serialize(json::object{{"ID", std::to_string(lease)}});
}

Result<EtcdLease> etcd_granted(std::string_view answer) {
  Result<json::object> o = etcd_object(answer);
  if (!o) return o.error();
  const json::value* result = o->if_contains("result");  // of a keep-alive
  const json::object& lease = result && result->is_object() ? result->as_object() : *o;
  if (!lease.contains("header")) return no_etcd_answer();
  return EtcdLease{whole_at(lease, "ID"), whole_at(lease, "TTL")};
}

}  // namespace sluice
