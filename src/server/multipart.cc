#include "server/multipart.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxParts = 16, kMaxPartHeader = 4096, kMaxBoundary = 70;

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

Error wrong_form(const std::string& what) { return {400, "the form cannot be read: " + what}; }

// A field's value and its parameters: form-data; name="file"; filename="a.jsonl"
struct FieldValue {
  std::string value;  // lower case
  std::vector<std::pair<std::string, std::string>> parameters;

  const std::string* find(std::string_view name) const {
    for (const auto& [n, v] : parameters)
      if (n == name) return &v;
    return nullptr;
  }
};

// The text in quotes that begins `rest`, with \" and \\ undone; `rest` goes on behind it.
std::optional<std::string> take_quoted(std::string_view& rest) {
  std::string out;
  for (size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') return rest.remove_prefix(i + 1), out;
    if (rest[i] == '\\' && i + 1 < rest.size() && (rest[i + 1] == '"' || rest[i + 1] == '\\')) ++i;
    out += rest[i];
  }
  return std::nullopt;
}

std::optional<FieldValue> parse_field_value(std::string_view text) {
  FieldValue out;
  out.value = lower_case(trimmed(text.substr(0, text.find(';'))));
  std::string_view rest = text.substr(std::min(text.find(';'), text.size()));
  while (!(rest = trimmed(rest)).empty()) {
    if (rest[0] != ';') return std::nullopt;
    rest = trimmed(rest.substr(1));
    if (rest.empty()) break;
    const size_t equals = rest.find('=');
    if (equals == rest.npos || equals == 0) return std::nullopt;
    std::string name = lower_case(trimmed(rest.substr(0, equals)));
    rest.remove_prefix(equals + 1);
    std::string value;
    if (rest.starts_with('"')) {
      std::optional<std::string> quoted = take_quoted(rest);
      if (!quoted) return std::nullopt;
      value = std::move(*quoted);
    } else {
      value = trimmed(rest.substr(0, rest.find(';')));
      rest.remove_prefix(std::min(rest.find(';'), rest.size()));
    }
    if (out.find(name)) return std::nullopt;
    out.parameters.emplace_back(std::move(name), std::move(value));
  }
  return out;
}

Result<std::string> find_boundary(std::string_view content_type) {
  const std::optional<FieldValue> type = parse_field_value(content_type);
  const std::string* boundary = type ? type->find("boundary") : nullptr;
  if (!boundary || boundary->empty() || boundary->size() > kMaxBoundary)
    return wrong_form("Content-Type has no boundary of 1 to 70 characters");
  const bool plain = std::ranges::all_of(
      *boundary, [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '"'; });
  if (!plain) return wrong_form("its boundary has characters that no boundary may have");
  return *boundary;
}

// The lines above a part's data, each ended by CR LF.
Result<FormPart> parse_part_header(std::string_view header) {
  FormPart part;
  bool named = false;
  while (!header.empty()) {
    const size_t end = header.find("\r\n");
    const std::string_view line = header.substr(0, end);
    header.remove_prefix(end + 2);
    const size_t colon = line.find(':');
    if (colon == line.npos) return wrong_form("a line above a part has no colon");
    const std::string name = lower_case(line.substr(0, colon));
    const std::optional<FieldValue> value = parse_field_value(line.substr(colon + 1));
    if (name == "content-transfer-encoding" &&
        (!value || (value->value != "binary" && value->value != "8bit" && value->value != "7bit")))
      return wrong_form("parts are taken as they are, without a Content-Transfer-Encoding");
    if (name != "content-disposition") continue;
    const std::string* part_name = value ? value->find("name") : nullptr;
    if (named || !part_name || part_name->empty() || value->value != "form-data")
      return wrong_form("a part needs one Content-Disposition: form-data; name=\"...\"");
    named = true;
    part.name = *part_name;
    if (const std::string* file = value->find("filename")) part.filename = *file;
  }
  if (!named) return wrong_form("a part has no Content-Disposition");
  return part;
}

}  // namespace

bool is_form(std::string_view content_type) {
  return lower_case(trimmed(content_type.substr(0, content_type.find(';')))) ==
         "multipart/form-data";
}

Result<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body) {
  Result<std::string> boundary = find_boundary(content_type);
  if (!boundary) return boundary.error();
  const std::string mark = "--" + *boundary, next = "\r\n" + mark;
  if (!body.starts_with(mark)) return wrong_form("it does not begin with its boundary");
  body.remove_prefix(mark.size());
  std::vector<FormPart> parts;
  for (;;) {
    if (body == "--" || body == "--\r\n") return parts;
    if (!body.starts_with("\r\n")) return wrong_form("it has no end");
    body.remove_prefix(2);
    const size_t blank = body.substr(0, kMaxPartHeader).find("\r\n\r\n");
    if (blank == body.npos) return wrong_form("the lines above a part have no end");
    Result<FormPart> part = parse_part_header(body.substr(0, blank + 2));
    if (!part) return part.error();
    body.remove_prefix(blank + 4);
    const size_t end = body.find(next);
    if (end == body.npos) return wrong_form("a part has no end");
    part->data = body.substr(0, end);
    body.remove_prefix(end + next.size());
    if (std::ranges::any_of(parts, [&](const FormPart& p) { return p.name == part->name; }))
      return wrong_form(strf("it has %s twice", quote(part->name).c_str()));
    parts.push_back(std::move(*part));
    if (parts.size() > kMaxParts) return wrong_form("it has more than 16 parts");
  }
}

}  // namespace sluice
