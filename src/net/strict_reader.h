// A second reader of HTTP requests, for tests: written from RFC 9112 alone, over a whole buffer,
// and stricter than it must be. A message that the server accepts and this reader refuses or frames
// differently is ambiguous.
#pragma once

#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct StrictMessage {
  std::string body;
  size_t end = 0;  // of the message in the buffer
};

namespace strict {

inline bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

inline std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Lines up to and with the empty one; nothing if a CR or LF stands anywhere but at a line's end.
inline std::optional<std::vector<std::string>> lines(std::string_view in, size_t& at) {
  std::vector<std::string> out;
  for (;;) {
    size_t end = at;
    while (end < in.size() && in[end] != '\r' && in[end] != '\n') ++end;
    if (end + 1 >= in.size() || in[end] != '\r' || in[end + 1] != '\n') return {};
    out.emplace_back(in.substr(at, end - at));
    at = end + 2;
    if (out.back().empty()) return out;
  }
}

// A field's name (in lower case) and value, or nothing.
inline std::optional<std::pair<std::string, std::string>> field(const std::string& line) {
  static const std::string kTchar = "!#$%&'*+-.^_`|~";
  size_t colon = 0;
  while (colon < line.size() && (std::isalnum(static_cast<unsigned char>(line[colon])) ||
                                 kTchar.find(line[colon]) != std::string::npos))
    ++colon;
  if (colon == 0 || colon == line.size() || line[colon] != ':') return {};
  size_t begin = colon + 1, end = line.size();
  while (begin < end && (line[begin] == ' ' || line[begin] == '\t')) ++begin;
  while (end > begin && (line[end - 1] == ' ' || line[end - 1] == '\t')) --end;
  std::string value = line.substr(begin, end - begin);
  for (char c : value) {
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) return {};
  }
  return std::pair{lower(line.substr(0, colon)), value};
}

inline bool read_chunks(std::string_view in, StrictMessage& m) {
  for (;;) {
    size_t digits = m.end;
    uint64_t size = 0;
    while (digits < in.size() && is_hex(in[digits]) && digits - m.end < 16)
      size = size * 16 + std::stoull(std::string(1, in[digits++]), nullptr, 16);
    if (digits == m.end) return false;
    size_t end = digits;
    while (end < in.size() && in[end] != '\r' && in[end] != '\n') ++end;
    if (end != digits && in[digits] != ';') return false;
    if (end + 1 >= in.size() || in[end] != '\r' || in[end + 1] != '\n') return false;
    m.end = end + 2;
    if (size == 0) break;
    if (size > in.size() - m.end || in.size() - m.end - size < 2) return false;
    m.body += in.substr(m.end, size);
    m.end += size;
    if (in.substr(m.end, 2) != "\r\n") return false;
    m.end += 2;
  }
  auto trailers = lines(in, m.end);
  if (!trailers) return false;
  for (size_t i = 0; i + 1 < trailers->size(); ++i) {
    if (!field((*trailers)[i])) return false;
  }
  return true;
}

}  // namespace strict

// The message at the start of `in` (one empty line may precede it), or nothing.
inline std::optional<StrictMessage> read_strictly(std::string_view in) {
  StrictMessage m;
  if (in.substr(0, 2) == "\r\n") m.end = 2;
  auto head = strict::lines(in, m.end);
  if (!head || head->size() < 2) return {};
  const std::string& first = (*head)[0];
  bool http11 = first.ends_with(" HTTP/1.1");
  if (!http11 && !first.ends_with(" HTTP/1.0")) return {};
  size_t spaces = 0;
  for (char c : first) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return {};
    spaces += c == ' ';
  }
  if (spaces != 2) return {};
  std::vector<std::string> lengths, encodings, hosts;
  for (size_t i = 1; i + 1 < head->size(); ++i) {
    auto f = strict::field((*head)[i]);
    if (!f) return {};
    if (f->first == "content-length") lengths.push_back(f->second);
    if (f->first == "transfer-encoding") encodings.push_back(strict::lower(f->second));
    if (f->first == "host") hosts.push_back(f->second);
  }
  if (hosts.size() > 1 || (http11 && hosts.empty())) return {};
  if (lengths.size() + encodings.size() > 1) return {};
  if (!encodings.empty()) {
    if (!http11 || encodings[0] != "chunked" || !strict::read_chunks(in, m)) return {};
  } else if (!lengths.empty()) {
    if (lengths[0].empty() || lengths[0].size() > 18) return {};
    size_t length = 0;
    for (char c : lengths[0]) {
      if (c < '0' || c > '9') return {};
      length = length * 10 + static_cast<size_t>(c - '0');
    }
    if (length > in.size() - m.end) return {};
    m.body = in.substr(m.end, length);
    m.end += length;
  }
  return m;
}

}  // namespace sluice
