#include "tools/bench_serve/chunk.h"

#include <charconv>

#include "base/json.h"

namespace sluice {

namespace {

// Walks well-formed JSON. `bad` is set by what it does not understand; then a parser decides.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool bad = false;

  bool take(char c) {
    space();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool done() {
    space();
    return at_ == end_;
  }
  char peek() {
    space();
    return at_ == end_ ? '\0' : *at_;
  }

  // The raw inside of a string, escapes and all.
  std::string_view raw_string() {
    if (!take('"')) return fail();
    const char* begin = at_;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (*at_ == '\\' && ++at_ == end_) return fail();
    }
    if (at_ == end_) return fail();
    return {begin, static_cast<size_t>(at_++ - begin)};
  }

  void skip() {
    int depth = 0;
    do {
      switch (peek()) {
        case '"':
          raw_string();
          break;
        case '{':
        case '[':
          ++depth;
          ++at_;
          break;
        case '}':
        case ']':
          --depth;
          ++at_;
          break;
        case ',':
        case ':':
          if (depth == 0) return void(fail());
          ++at_;
          break;
        case '\0':
          return void(fail());
        default:
          scalar();
      }
    } while (depth > 0 && !bad);
  }

  std::string_view scalar() {
    space();
    const char* begin = at_;
    while (at_ != end_ && !is_delimiter(*at_)) ++at_;
    if (at_ == begin) return fail();
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  // f(key) for every member; it must take the value.
  template <typename F>
  void object(F&& f) {
    if (!take('{')) return void(fail());
    if (take('}')) return;
    do {
      std::string_view key = raw_string();
      if (bad || !take(':')) return void(fail());
      f(key);
    } while (!bad && take(','));
    if (!take('}')) fail();
  }

  template <typename F>
  void array(F&& f) {
    if (!take('[')) return void(fail());
    if (take(']')) return;
    do {
      f();
    } while (!bad && take(','));
    if (!take(']')) fail();
  }

 private:
  std::string_view fail() {
    bad = true;
    return {};
  }
  static bool is_delimiter(char c) {
    return c == ',' || c == '}' || c == ']' || c == ':' || c == '"' || c == '{' || c == '[' ||
           static_cast<unsigned char>(c) <= ' ';
  }
  void space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  const char* at_;
  const char* end_;
};

// Appends the string whose inside is `raw`. Boost.JSON undoes the escapes where there are any.
void append_unescaped(std::string_view raw, std::string& out) {
  if (raw.find('\\') == std::string_view::npos) {
    out += raw;
    return;
  }
  std::string quoted;
  quoted.reserve(raw.size() + 2);
  quoted.append("\"").append(raw).append("\"");
  Result<json::value> v = parse_json(quoted);
  if (v && v->is_string()) out += std::string_view(v->as_string());
}

class ChunkReader {
 public:
  ChunkReader(std::string_view text, bool keep_text, ChunkInfo& out)
      : c_(text), keep_text_(keep_text), out_(out) {}

  bool read() {
    if (c_.peek() != '{') return false;
    c_.object([&](std::string_view key) {
      if (key == "choices" && c_.peek() == '[') {
        c_.array([&] { choice(); });
      } else if (key == "usage" && c_.peek() == '{') {
        usage();
      } else if (key == "error" && c_.peek() == '{') {
        error();
      } else if (key == "error" && c_.peek() == '"') {
        out_.is_error = true;
        append_unescaped(c_.raw_string(), out_.message);
      } else {
        c_.skip();
      }
    });
    return !c_.bad && c_.done();
  }

 private:
  void choice() {
    if (c_.peek() != '{') return c_.skip();
    out_.has_choice = true;
    c_.object([&](std::string_view key) {
      if (key == "delta" || key == "message") {
        if (c_.peek() != '{') return c_.skip();
        c_.object([&](std::string_view inner) {
          bool ours = inner == "content" || inner == "reasoning" || inner == "reasoning_content";
          if (inner == "tool_calls" && c_.peek() == '[') {
            c_.array([&] {
              out_.has_text = true;
              c_.skip();
            });
          } else if (ours) {
            text(inner == "content");
          } else {
            c_.skip();
          }
        });
      } else if (key == "text") {
        text(true);
      } else if (key == "finish_reason" && c_.peek() == '"') {
        out_.finish = std::string(c_.raw_string());
      } else {
        c_.skip();
      }
    });
  }

  void text(bool keep) {
    if (c_.peek() != '"') return c_.skip();
    std::string_view raw = c_.raw_string();
    if (raw.empty()) return;
    out_.has_text = true;
    if (keep && keep_text_) append_unescaped(raw, out_.text);
  }

  bool number(int64_t& to) {
    if (c_.peek() == '"' || c_.peek() == '{' || c_.peek() == '[') {
      c_.skip();
      return false;
    }
    std::string_view s = c_.scalar();
    int64_t v = 0;
    auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), v);
    if (ec != std::errc() || end != s.data() + s.size() || v < 0) return false;
    to = v;
    return true;
  }

  void usage() {
    c_.object([&](std::string_view key) {
      if (key == "prompt_tokens") {
        number(out_.prompt_tokens);
      } else if (key == "completion_tokens") {
        out_.has_usage |= number(out_.completion_tokens);
      } else if (key == "prompt_tokens_details" && c_.peek() == '{') {
        c_.object([&](std::string_view inner) {
          if (inner == "cached_tokens") {
            number(out_.cached_tokens);
          } else {
            c_.skip();
          }
        });
      } else {
        c_.skip();
      }
    });
  }

  void error() {
    out_.is_error = true;
    c_.object([&](std::string_view key) {
      if (key == "message" && c_.peek() == '"') {
        append_unescaped(c_.raw_string(), out_.message);
      } else {
        c_.skip();
      }
    });
  }

  Cursor c_;
  bool keep_text_;
  ChunkInfo& out_;
};

}  // namespace

bool read_chunk(std::string_view text, bool keep_text, ChunkInfo& out) {
  out = {};
  if (ChunkReader(text, keep_text, out).read()) return true;
  // Not what the walker understands. If it is JSON after all, its plain form is.
  Result<json::value> v = parse_json(text);
  out = {};
  if (!v || !v->is_object()) return false;
  return ChunkReader(json::serialize(*v), keep_text, out).read();
}

}  // namespace sluice
