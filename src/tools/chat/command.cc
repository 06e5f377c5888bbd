#include "tools/chat/command.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/str.h"
#include "tools/requests.h"

namespace sluice {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view s) {
  const size_t begin = s.find_first_not_of(kSpace);
  if (begin == s.npos) return {};
  return s.substr(begin, s.find_last_not_of(kSpace) - begin + 1);
}

// Letters to add, drop, change or swap to come from one to the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// One setting: its value as text, and the way back.
struct Setting {
  std::string_view name;
  std::function<std::string(const SamplingOptions&)> get;
  std::function<bool(SamplingOptions&, const std::string&)> set;  // false: not such a value
  const char* kind;
};

template <typename T>
bool parse_whole(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, out);
  return error == std::errc() && at == end;
}

bool parse_fraction(const std::string& text, float& out) {
  char* end = nullptr;
  const float v = std::strtof(text.c_str(), &end);
  if (end == text.c_str() || *end != 0 || !std::isfinite(v)) return false;
  out = v;
  return true;
}

Setting fraction(std::string_view name, float SamplingSpec::*field) {
  return {
      name,
      [=](const SamplingOptions& o) { return strf("%g", static_cast<double>(o.spec.*field)); },
      [=](SamplingOptions& o, const std::string& v) { return parse_fraction(v, o.spec.*field); },
      "a number"};
}

template <typename T>
Setting whole(std::string_view name, T SamplingSpec::*field) {
  return {name, [=](const SamplingOptions& o) { return std::to_string(o.spec.*field); },
          [=](SamplingOptions& o, const std::string& v) { return parse_whole(v, o.spec.*field); },
          "a whole number"};
}

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      fraction("temperature", &SamplingSpec::temperature),
      fraction("top_p", &SamplingSpec::top_p),
      whole("top_k", &SamplingSpec::top_k),
      fraction("min_p", &SamplingSpec::min_p),
      fraction("repetition_penalty", &SamplingSpec::repetition_penalty),
      fraction("frequency_penalty", &SamplingSpec::frequency_penalty),
      fraction("presence_penalty", &SamplingSpec::presence_penalty),
      whole("seed", &SamplingSpec::seed),
      {"max_tokens", [](const SamplingOptions& o) { return std::to_string(o.max_tokens); },
       [](SamplingOptions& o, const std::string& v) {
         return parse_whole(v, o.max_tokens) && o.max_tokens >= 1;
       },
       "a whole number above 0"},
      whole("min_tokens", &SamplingSpec::min_tokens),
      {"stop",
       [](const SamplingOptions& o) {
         std::string all_stops;
         for (const std::string& s : o.stop) all_stops += (all_stops.empty() ? "" : " ") + quote(s);
         return all_stops.empty() ? std::string("none") : all_stops;
       },
       [](SamplingOptions& o, const std::string& v) {
         if (v.size() > 256) return false;
         o.stop.clear();
         if (v != "none") o.stop.push_back(v);
         return true;
       },
       "text of at most 256 bytes, or none"},
  };
  return all;
}

}  // namespace

std::optional<ChatCommand> parse_command(std::string_view line) {
  if (!line.starts_with('/')) return std::nullopt;
  line.remove_prefix(1);
  const size_t end = std::min(line.find_first_of(kSpace), line.size());
  ChatCommand c{std::string(line.substr(0, end)), std::string(trimmed(line.substr(end))), false};
  if (c.name.ends_with('!')) {
    c.name.pop_back();
    c.forced = true;
  }
  return c;
}

std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words) {
  if (word.empty() || word.size() > 32) return {};
  std::string_view best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (std::string_view w : words) {
    const size_t distance = w.starts_with(word) ? 1 : edit_distance(word, w);
    if (distance < least) {
      least = distance;
      best = w;
    }
  }
  return best;
}

Result<void> change_setting(SamplingOptions& options, std::string key, const std::string& value) {
  std::replace(key.begin(), key.end(), '-', '_');
  std::vector<std::string_view> names;
  for (const Setting& s : settings()) {
    names.push_back(s.name);
    if (s.name != key) continue;
    SamplingOptions changed = options;
    if (value.empty() || !s.set(changed, value))
      return Error{400, strf("%s takes %s", key.c_str(), s.kind)};
    if (auto ok = check_sampling(changed.spec); !ok) {
      std::string message = ok.error().message;  // names the option of the command line
      if (message.starts_with("--")) message.erase(0, 2);
      return Error{400, message};
    }
    options = std::move(changed);
    return {};
  }
  const std::string_view near = nearest_word(key, names);
  return Error{400, strf("no setting %s%s (/set lists them)", quote(key).c_str(),
                         near.empty() ? "" : strf("; do you mean %s?", near.data()).c_str())};
}

std::string list_settings(const SamplingOptions& options) {
  std::string out;
  for (const Setting& s : settings())
    out += strf("  %-20s %s\n", s.name.data(), s.get(options).c_str());
  return out;
}

}  // namespace sluice
