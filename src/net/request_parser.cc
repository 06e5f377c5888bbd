#include "net/request_parser.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxMethod = 32, kMaxChunkLine = 4096, kMaxHexDigits = 16, kMaxDigits = 18;

constexpr std::array<bool, 256> make_set(std::string_view extra) {
  std::array<bool, 256> set{};
  for (int c = 0; c < 256; ++c)
    set[static_cast<size_t>(c)] =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  for (char c : extra) set[static_cast<unsigned char>(c)] = true;
  return set;
}
constexpr auto kToken = make_set("!#$%&'*+-.^_`|~");
constexpr auto kHostByte = make_set("-._~!$&'()*+,;=%[]:");

bool all_in(std::string_view text, const std::array<bool, 256>& set) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return set[static_cast<unsigned char>(c)]; });
}

bool is_method(std::string_view text) {
  return !text.empty() && text.size() <= kMaxMethod && all_in(text, kToken);
}

// Visible ASCII, bytes of other encodings, space and tab.
bool is_value(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    auto u = static_cast<unsigned char>(c);
    return c == '\t' || (u >= 0x20 && u != 0x7f);
  });
}

bool is_target(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    auto u = static_cast<unsigned char>(c);
    return u > 0x20 && u != 0x7f;
  });
}

char lower(char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); }

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(" \t");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") + 1 - first);
}

}  // namespace

bool RequestParser::refuse(int status, std::string reason) {
  status_ = status;
  reason_ = std::move(reason);
  return false;
}

size_t RequestParser::put(std::string_view bytes) {
  size_t given = bytes.size();
  while (!bytes.empty() && !done() && !refused()) {
    switch (stage_) {
      case Stage::head:
        if (take_line(bytes, limits_.header_bytes - head_bytes_)) {
          on_head_line();
        } else if (!has_line_) {
          check_start();  // refused or not: the answer is the same however the bytes come
        }
        break;
      case Stage::fixed:
      case Stage::chunk_data:
        copy_body(bytes);
        break;
      case Stage::chunk_end:
        if (!take_line(bytes, 2)) break;
        stage_ = Stage::chunk_size;
        line_.clear();
        break;
      case Stage::chunk_size:
        if (take_line(bytes, kMaxChunkLine)) on_chunk_size();
        break;
      case Stage::trailer:
        if (take_line(bytes, limits_.header_bytes - head_bytes_)) on_trailer_line();
        break;
      case Stage::done:
        break;
    }
  }
  return given - bytes.size();
}

// True: line_ is a whole line, ended by CR LF. `limit` counts its bytes with the end.
bool RequestParser::take_line(std::string_view& bytes, size_t limit) {
  size_t end = bytes.find('\n');
  size_t count = std::min(end == bytes.npos ? bytes.size() : end + 1, limit - line_.size());
  line_.append(bytes.substr(0, count));
  bytes.remove_prefix(count);
  if (!line_.empty() && line_.back() == '\n') {
    if (line_.size() >= 2 && line_[line_.size() - 2] == '\r') {
      if (stage_ == Stage::chunk_end && line_.size() != 2)
        return refuse(400, "malformed HTTP request: a chunk is longer than its size");
      return true;
    }
    return refuse(400, "malformed HTTP request: a line must end with CR LF");
  }
  if (line_.size() < limit) return false;
  if (stage_ == Stage::head || stage_ == Stage::trailer) {
    return refuse(stage_ == Stage::head ? 431 : 400,
                  strf("the header is larger than %zu bytes", limits_.header_bytes));
  }
  if (stage_ == Stage::chunk_end)
    return refuse(400, "malformed HTTP request: a chunk is longer than its size");
  return refuse(400, strf("malformed HTTP request: a chunk's size and extension are longer than "
                          "%zu bytes",
                          kMaxChunkLine));
}

// Bytes that begin no request are refused before their line ends, which may never come.
void RequestParser::check_start() {
  std::string_view line = line_;
  if (line.ends_with('\r')) line.remove_suffix(1);  // its end, most likely
  if (line.empty()) return;
  if (!is_method(line.substr(0, line.find(' ')))) refuse(400, "malformed HTTP request: bad method");
}

void RequestParser::on_head_line() {
  head_bytes_ += line_.size();
  std::string_view line(line_.data(), line_.size() - 2);
  if (!has_line_) {
    if (line.empty()) {  // old clients send one behind a body
      if (blank_line_) refuse(400, "malformed HTTP request: empty lines before it");
      blank_line_ = true;
    } else {
      has_line_ = parse_request_line(line);
    }
  } else if (line.empty()) {
    finish_head();
  } else if (request_.headers.size() >= limits_.num_headers) {
    refuse(431, strf("more than %zu header fields", limits_.num_headers));
  } else {
    std::string name;
    std::string_view value;
    if (parse_field(line, name, value))
      request_.headers.emplace_back(std::move(name), std::string(value));
  }
  line_.clear();
}

bool RequestParser::parse_request_line(std::string_view line) {
  size_t first = line.find(' '), last = line.rfind(' ');
  std::string_view method = line.substr(0, first);
  if (!is_method(method)) return refuse(400, "malformed HTTP request: bad method");
  if (first == line.npos || first == last)
    return refuse(400, "malformed HTTP request: the first line is METHOD TARGET HTTP/1.1");
  std::string_view version = line.substr(last + 1);
  std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.empty() || !is_target(target))
    return refuse(400, "malformed HTTP request: bad target");
  auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (version.size() != 8 || !version.starts_with("HTTP/") || !digit(version[5]) ||
      version[6] != '.' || !digit(version[7]))
    return refuse(400, "malformed HTTP request: bad version");
  if (version[5] != '1' || version[7] > '1') return refuse(505, "HTTP/1.1 or HTTP/1.0 is needed");
  minor_ = version[7] - '0';
  request_.method = std::string(method);
  return split_target(target);
}

// /path?query, or http://authority/path?query, or * for OPTIONS.
bool RequestParser::split_target(std::string_view target) {
  if (request_.method == "CONNECT") return refuse(400, "CONNECT is not served: this is no proxy");
  if (target[0] != '/' && !(target == "*" && request_.method == "OPTIONS")) {
    size_t scheme = equals_ignoring_case(target.substr(0, 7), "http://")    ? 7
                    : equals_ignoring_case(target.substr(0, 8), "https://") ? 8
                                                                            : 0;
    if (scheme == 0) return refuse(400, "malformed HTTP request: the target must start with /");
    target.remove_prefix(scheme);
    size_t end = std::min(target.find_first_of("/?"), target.size());
    authority_ = std::string(target.substr(0, end));
    absolute_ = true;
    target.remove_prefix(end);
  }
  size_t question = target.find('?');
  request_.path = std::string(target.substr(0, question));
  if (request_.path.empty()) request_.path = "/";
  if (question != target.npos) request_.query = std::string(target.substr(question + 1));
  return true;
}

bool RequestParser::parse_field(std::string_view line, std::string& name, std::string_view& value) {
  if (line[0] == ' ' || line[0] == '\t')
    return refuse(400, "malformed HTTP request: a header field is folded over lines");
  size_t colon = line.find(':');
  if (colon == line.npos)
    return refuse(400, "malformed HTTP request: a header field without a colon");
  if (colon == 0 || !all_in(line.substr(0, colon), kToken))
    return refuse(400, "malformed HTTP request: bad header field name");
  value = trimmed(line.substr(colon + 1));
  if (!is_value(value)) return refuse(400, "malformed HTTP request: bad header field value");
  name = std::string(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), lower);
  return true;
}

void RequestParser::finish_head() {
  if (!read_host() || !read_framing()) return;
  bool close = false, keep = false;
  for (const auto& [name, value] : request_.headers) {
    if (name == "connection") read_connection(value, close, keep);
    if (name == "expect") expects_continue_ = equals_ignoring_case(value, "100-continue");
  }
  keep_alive_ = !close && (keep || minor_ == 1);
}

bool RequestParser::read_host() {
  size_t count = 0;
  for (const auto& [name, value] : request_.headers) {
    if (name != "host") continue;
    ++count;
    if (!all_in(value, kHostByte)) return refuse(400, "malformed HTTP request: bad Host");
    if (absolute_ && !equals_ignoring_case(value, authority_))
      return refuse(400, "the Host header is not the host of the target");
  }
  if (count == 1 || (count == 0 && minor_ == 0)) return true;
  return refuse(400, "exactly one Host header is needed");
}

// How the body is framed; the stage that reads it.
bool RequestParser::read_framing() {
  size_t lengths = 0, encodings = 0;
  bool chunked = false;
  for (const auto& [name, value] : request_.headers) {
    if (name == "content-length") {
      if (++lengths > 1) return refuse(400, "more than one Content-Length");
      if (!read_length(value)) return false;
    }
    if (name == "transfer-encoding") {
      ++encodings;
      chunked = equals_ignoring_case(value, "chunked");
    }
  }
  if (encodings > 0) {
    if (lengths > 0) return refuse(400, "Content-Length together with Transfer-Encoding");
    if (encodings > 1 || !chunked)
      return refuse(400, "the only transfer encoding understood is chunked");
    if (minor_ == 0) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
    stage_ = Stage::chunk_size;
    return true;
  }
  if (left_ > limits_.body_bytes)
    return refuse(413, strf("the body is larger than %zu bytes", limits_.body_bytes));
  stage_ = left_ > 0 ? Stage::fixed : Stage::done;
  return true;
}

bool RequestParser::read_length(std::string_view value) {
  if (value.empty()) return refuse(400, "malformed HTTP request: bad Content-Length");
  for (char c : value) {
    if (c < '0' || c > '9') return refuse(400, "malformed HTTP request: bad Content-Length");
    left_ = left_ * 10 + static_cast<uint64_t>(c - '0');
  }
  // More digits are too many bytes, or zeros that readers may count differently.
  if (value.size() > kMaxDigits) left_ = std::numeric_limits<uint64_t>::max();
  return true;
}

void RequestParser::read_connection(std::string_view value, bool& close, bool& keep) {
  while (!value.empty()) {
    size_t comma = std::min(value.find(','), value.size());
    std::string_view option = trimmed(value.substr(0, comma));
    close |= equals_ignoring_case(option, "close");
    keep |= equals_ignoring_case(option, "keep-alive");
    value.remove_prefix(std::min(comma + 1, value.size()));
  }
}

void RequestParser::on_chunk_size() {
  std::string_view line(line_.data(), line_.size() - 2);
  size_t digits = std::min(line.find(';'), line.size());
  std::string_view extension = line.substr(digits);
  uint64_t size = 0;
  bool good = digits > 0 && digits <= kMaxHexDigits && is_value(extension);
  for (size_t i = 0; good && i < digits; ++i) {
    char c = lower(line[i]);
    bool decimal = c >= '0' && c <= '9';
    good = decimal || (c >= 'a' && c <= 'f');
    size = size << 4 | static_cast<uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  extra_bytes_ += extension.size();
  line_.clear();
  if (!good) {
    refuse(400, "malformed HTTP request: bad chunk size");
  } else if (extra_bytes_ > limits_.header_bytes) {
    refuse(400, strf("chunk extensions of more than %zu bytes", limits_.header_bytes));
  } else if (size > limits_.body_bytes - request_.body.size()) {
    refuse(413, strf("the body is larger than %zu bytes", limits_.body_bytes));
  } else {
    left_ = size;
    stage_ = size > 0 ? Stage::chunk_data : Stage::trailer;
  }
}

void RequestParser::on_trailer_line() {
  head_bytes_ += line_.size();
  std::string_view line(line_.data(), line_.size() - 2), value;
  std::string name;
  if (line.empty()) {
    stage_ = Stage::done;
  } else {
    parse_field(line, name, value);
  }
  line_.clear();
}

void RequestParser::copy_body(std::string_view& bytes) {
  auto count = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  request_.body.append(bytes.substr(0, count));
  bytes.remove_prefix(count);
  left_ -= count;
  if (left_ == 0) stage_ = stage_ == Stage::fixed ? Stage::done : Stage::chunk_end;
}

}  // namespace sluice
