#include "tools/route/request_shape.h"

#include <algorithm>

namespace sluice {

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

// Walks over JSON without checking it. Every call moves forward or says that it cannot.
class ShapeScanner {
 public:
  explicit ShapeScanner(std::string_view text) : text_(text) {}

  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }
  // The bytes between the quotes, escapes as they are. False: no string.
  bool string(std::string_view& out) {
    if (!take('"')) return false;
    const size_t from = at_;
    for (;;) {
      at_ = text_.find_first_of("\"\\", at_);
      if (at_ == std::string_view::npos) return at_ = text_.size(), false;
      if (text_[at_] == '"') break;
      at_ = std::min(at_ + 2, text_.size());
    }
    out = text_.substr(from, at_++ - from);
    return true;
  }
  // Any value, as it is written.
  bool value(std::string_view& out) {
    skip_space();
    const size_t from = at_;
    int depth = 0;
    std::string_view ignored;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!string(ignored)) return false;
      } else if (c == '{' || c == '[') {
        ++depth, ++at_;
      } else if (c == '}' || c == ']') {
        if (depth == 0) break;
        --depth, ++at_;
      } else if (c == ',' && depth == 0) {
        break;
      } else {
        ++at_;
      }
      if (depth == 0 && (c == '"' || c == '}' || c == ']')) break;
    }
    out = text_.substr(from, at_ - from);
    return at_ > from && depth == 0;
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Calls `f(key, value)` for the fields of the outermost object; false: it does not end as one, or
// something follows.
template <typename F>
bool for_each_field(std::string_view body, F f) {
  ShapeScanner in(body);
  if (!in.take('{')) return false;
  std::string_view key, value;
  do {
    if (!in.string(key) || !in.take(':') || !in.value(value)) return false;
    f(key, value);
  } while (in.take(','));
  return in.take('}') && in.at_end();
}

// A list of numbers, or of such lists: its entries are tokens.
bool is_token_ids(std::string_view prompt) {
  if (prompt.empty() || prompt[0] != '[') return false;
  const size_t first = prompt.find_first_not_of("[ \n\r\t");
  return first != std::string_view::npos && prompt[first] >= '0' && prompt[first] <= '9';
}

int64_t text_tokens(size_t bytes) {
  return static_cast<int64_t>(bytes / (kShapeBlockBytes / kShapeBlockTokens));
}

bool is_set(std::string_view value) { return !value.starts_with("null"); }

}  // namespace

RequestShape read_shape(std::string_view body) {
  RequestShape shape;
  bool plain = true;
  const auto read = [&](std::string_view key, std::string_view value) {
    plain = plain && key.find('\\') == std::string_view::npos;
    if (key == "messages" || key == "prompt" || key == "input") shape.prompt = value;
    if (key == "tools") shape.tools = value;
    if (key == "system") shape.system = value;
    if (key == "cache_salt") shape.salt = value;
    if (key == "stream") shape.stream = value.substr(0, 4) == "true";
    if (key == "user" || key == "prompt_cache_key") shape.session = value;
    if (key == "echo") shape.scores_prompt |= value.starts_with("true");
    if (key == "prompt_logprobs") shape.scores_prompt |= is_set(value);
    if (key == "kv_transfer_params") shape.transfers = is_set(value);
  };
  shape.complete = for_each_field(body, read) && plain;
  return shape;
}

bool can_split(const RequestShape& s) {
  if (!s.complete || s.scores_prompt || s.transfers || s.prompt.empty()) return false;
  if (s.prompt[0] != '[') return true;
  // Messages and token ids are one prompt; strings and lists are several.
  const size_t first = s.prompt.find_first_not_of(" \n\r\t", 1);
  return s.prompt.find_first_of("\"[]", first) != first;
}

std::string replace_fields(std::string_view body,
                           std::span<const std::string_view> dropped,
                           std::string_view added) {
  std::string out = "{";
  out.reserve(body.size() + added.size() + 2);
  for_each_field(body, [&](std::string_view key, std::string_view value) {
    if (std::find(dropped.begin(), dropped.end(), key) != dropped.end()) return;
    out += '"';
    out += key;
    out += "\":";
    out += value;
    out += ',';
  });
  out += added;
  out += '}';
  return out;
}

std::string_view find_field(std::string_view body, std::string_view name) {
  std::string_view found;
  const auto look = [&](std::string_view key, std::string_view value) {
    if (key == name) found = value;
  };
  return for_each_field(body, look) ? found : std::string_view();
}

int64_t shape_tokens(const RequestShape& s) {
  const size_t beside = s.tools.size() + s.system.size();
  if (is_token_ids(s.prompt))
    return text_tokens(beside) + std::count(s.prompt.begin(), s.prompt.end(), ',') + 1;
  return std::max<int64_t>(1, text_tokens(beside + s.prompt.size()));
}

int shape_block_tokens(const RequestShape& s) {
  if (!is_token_ids(s.prompt)) return kShapeBlockTokens;
  const auto bytes = static_cast<int64_t>(s.tools.size() + s.system.size() + s.prompt.size());
  const int64_t tokens = shape_tokens(s) * static_cast<int64_t>(kShapeBlockBytes) / bytes;
  return static_cast<int>(std::max<int64_t>(1, tokens));
}

std::vector<uint64_t> shape_blocks(const RequestShape& s, const HashKey& key) {
  std::vector<uint64_t> out;
  HashKey chained = key;
  const auto add = [&](std::string_view block) {
    chained[0] = key[0] ^ keyed_hash(chained, block);
    out.push_back(chained[0]);
  };
  // The rest of a part that is no block goes into the hash of the next one.
  for (std::string_view part : {s.tools, s.system}) {
    for (; part.size() > kShapeBlockBytes && out.size() < kMostShapeBlocks;
         part.remove_prefix(kShapeBlockBytes))
      add(part.substr(0, kShapeBlockBytes));
    if (!part.empty()) chained[0] = key[0] ^ keyed_hash(chained, part);
  }
  for (std::string_view rest = s.prompt;
       rest.size() >= kShapeBlockBytes && out.size() < kMostShapeBlocks;
       rest.remove_prefix(kShapeBlockBytes))
    add(rest.substr(0, kShapeBlockBytes));
  return out;
}

}  // namespace sluice
