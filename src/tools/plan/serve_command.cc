#include "tools/plan/serve_command.h"

#include <algorithm>
#include <cctype>

#include "base/str.h"

namespace sluice {

std::string shell_word(std::string_view text) {
  constexpr std::string_view kPlain = "_@%+=:,./-";
  const bool plain = std::ranges::all_of(text, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || kPlain.find(c) != kPlain.npos;
  });
  if (plain && !text.empty()) return std::string(text);
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::string option_words(std::span<const GivenOption> options) {
  std::string out;
  for (const GivenOption& o : options) {
    out += (out.empty() ? "" : " ") + o.name;
    for (const std::string& v : o.values) out += " " + shell_word(v);
  }
  return out;
}

std::string serve_command(const std::string& model,
                          std::span<const GivenOption> given,
                          std::span<const GivenOption> chosen) {
  std::vector<GivenOption> all(given.begin(), given.end());
  std::erase_if(all, [&](const GivenOption& o) {
    return std::ranges::any_of(chosen, [&](const GivenOption& c) { return c.name == o.name; });
  });
  all.insert(all.end(), chosen.begin(), chosen.end());
  std::string out = "sluice serve " + shell_word(model);
  if (!all.empty()) out += " " + option_words(all);
  return out;
}

std::vector<std::string> split_commands(const std::string& model,
                                        std::span<const GivenOption> given,
                                        std::span<const GivenOption> chosen,
                                        int prefill,
                                        int decode) {
  const std::string serve =
      serve_command(model, given, chosen) + " --host 0.0.0.0 --api-key-file KEYS --kv-key KEY";
  const auto times = [](int n) { return n == 1 ? std::string() : strf("  # %d of these", n); };
  std::string route = "sluice route";
  for (int i = 1; i <= prefill; ++i) route += strf(" --worker http://PREFILL%d:8080", i);
  for (int i = 1; i <= decode; ++i) route += strf(" --worker http://DECODE%d:8080", i);
  return {serve + " --role prefill --kv-host ADDRESS" + times(prefill),
          serve + " --role decode" + times(decode), route};
}

}  // namespace sluice
