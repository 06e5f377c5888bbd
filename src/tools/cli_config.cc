#include "tools/cli_config.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/log.h"
#include "base/str.h"
#include "tools/config_file.h"

namespace sluice {

namespace {

bool is_flag(const CLI::Option& o) { return o.get_expected_max() == 0; }

// Its long name, or the name of a positional; empty: none of ours (--help).
std::string name_of(const CLI::Option& o) {
  const auto& longs = o.get_lnames();
  if (!longs.empty()) return longs[0] == "help" || longs[0] == "version" ? "" : longs[0];
  return o.get_positional() ? o.get_single_name() : "";
}

const CLI::Option* find_named(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* o : command.get_options()) {
    const auto& longs = o->get_lnames();
    if (std::find(longs.begin(), longs.end(), name) != longs.end() || name_of(*o) == name) return o;
  }
  return nullptr;
}

const CLI::Option* find_short(const CLI::App& command, char letter) {
  for (const CLI::Option* o : command.get_options()) {
    const auto& shorts = o->get_snames();
    if (std::find(shorts.begin(), shorts.end(), std::string(1, letter)) != shorts.end()) return o;
  }
  return nullptr;
}

// What the words name already, by long name; the value of --config on the way.
struct Given {
  std::set<std::string> names;
  size_t num_positionals = 0;
  std::string config;
};

Given read_words(const CLI::App& command, const std::vector<std::string>& args) {
  Given given;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const CLI::Option* option = nullptr;
    std::string value;
    bool has_value = false;
    if (word == "--") {
      given.num_positionals += args.size() - i - 1;
      break;
    }
    if (word.starts_with("--")) {
      size_t equals = word.find('=');
      option = find_named(command, word.substr(2, equals - 2));
      has_value = equals != word.npos;
      if (has_value) value = word.substr(equals + 1);
    } else if (word.size() > 1 && word[0] == '-') {
      option = find_short(command, word[1]);
      has_value = word.size() > 2;
    } else {
      ++given.num_positionals;
      continue;
    }
    if (!option) continue;  // the parser will say so
    if (!is_flag(*option) && !has_value && i + 1 < args.size()) value = args[++i];
    given.names.insert(name_of(*option));
    if (name_of(*option) == "config") given.config = value;
  }
  return given;
}

// The flag that says the opposite of `name`, where there is one; else empty.
std::string opposite_of(const CLI::Option& o, const std::string& name) {
  const auto& longs = o.get_lnames();
  auto has = [&](const std::string& n) {
    return std::find(longs.begin(), longs.end(), n) != longs.end();
  };
  if (has("no-" + name)) return "no-" + name;
  return name.starts_with("no-") && has(name.substr(3)) ? name.substr(3) : "";
}

// The words that set an option, or an error for a flag that is neither true nor false. `name` is
// the one of its names that was used.
Result<std::vector<std::string>> words_for(const CLI::Option& o,
                                           const std::string& name,
                                           const std::vector<std::string>& values,
                                           const std::string& origin) {
  std::vector<std::string> words;
  for (const std::string& value : values) {
    if (is_flag(o)) {
      bool yes = value == "true" || value == "yes" || value == "on" || value == "1";
      bool no = value == "false" || value == "no" || value == "off" || value == "0";
      if (!yes && !no)
        return Error{400, strf("%s: %s is true or false, not %s", origin.c_str(), name.c_str(),
                               quote(value).c_str())};
      const std::string opposite = opposite_of(o, name);
      if (yes) words.push_back("--" + name);
      if (no && !opposite.empty()) words.push_back("--" + opposite);
    } else if (o.get_lnames().empty()) {
      words.push_back(value);
    } else {
      words.push_back("--" + name + "=" + value);
    }
  }
  return words;
}

// What the option comes to; "-": nothing.
std::string value_of(const CLI::Option& o,
                     const std::string& name,
                     const ResolvedValues& resolved) {
  std::string given;
  if (o.count() > 0)
    for (const std::string& r : o.results()) given += (given.empty() ? "" : ", ") + r;
  if (is_flag(o) && o.count() > 0)  // --no-graphs sets `capture` to false
    return (o.results().back() == "true") != name.starts_with("no-") ? "true" : "false";
  auto chosen = resolved.find(name);
  if (chosen != resolved.end() && (given.empty() || given == "auto")) return chosen->second;
  if (!given.empty()) return given;
  if (is_flag(o)) return "false";
  const std::string value = o.get_default_str();
  return value.empty() || value == "{}" || value == "[]" ? "-" : value;
}

}  // namespace

std::string variable_name(const std::string& option) {
  std::string out = "SLUICE_";
  for (char c : option) out += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return out;
}

Result<std::vector<OptionOrigin>> add_outside_options(const CLI::App& command,
                                                      std::vector<std::string>& args) {
  std::vector<OptionOrigin> origins;
  Given given = read_words(command, args);
  auto add = [&](const CLI::Option& o, const std::string& used,
                 const std::vector<std::string>& values,
                 const std::string& origin) -> Result<void> {
    std::string name = name_of(o);
    bool named = o.get_lnames().empty() ? given.num_positionals > 0 : given.names.contains(name);
    if (named) return {};
    Result<std::vector<std::string>> words = words_for(o, used, values, origin);
    if (!words) return words.error();
    args.insert(args.end(), words->begin(), words->end());
    if (o.get_lnames().empty()) given.num_positionals += words->size();
    given.names.insert(name);
    if (name == "config") given.config = values[0];
    origins.push_back({name, origin});
    return {};
  };
  for (const CLI::Option* o : command.get_options()) {
    std::string name = name_of(*o);
    const char* value = name.empty() ? nullptr : std::getenv(variable_name(name).c_str());
    if (!value || !*value) continue;
    if (auto ok = add(*o, name, {value}, variable_name(name)); !ok) return ok.error();
  }
  if (given.config.empty()) return origins;
  Result<ConfigFile> file = read_config(given.config);
  if (!file) return file.error();
  for (const std::string& key : file->unused)
    LOG(warn, "%s: %s has no meaning here", given.config.c_str(), key.c_str());
  for (const ConfigEntry& e : file->entries) {
    std::string origin = strf("%s, line %d", given.config.c_str(), e.line);
    const CLI::Option* o = find_named(command, e.option);
    if (!o || e.option == "config") {
      return Error{400, strf("%s: there is no option %s (see sluice %s --help)", origin.c_str(),
                             quote(e.option).c_str(), command.get_name().c_str())};
    }
    if (auto ok = add(*o, e.option, e.values, origin); !ok) return ok.error();
  }
  return origins;
}

std::string describe_options(const CLI::App& command,
                             const std::vector<OptionOrigin>& outside,
                             const ResolvedValues& resolved) {
  std::string out;
  for (const CLI::Option* o : command.get_options()) {
    std::string name = name_of(*o);
    if (name.empty()) continue;
    auto from = std::find_if(outside.begin(), outside.end(),
                             [&](const OptionOrigin& x) { return x.option == name; });
    const char* origin = from != outside.end() ? from->origin.c_str()
                         : o->count() > 0      ? "command line"
                                               : "default";
    out += strf("%-24s %-28s %s\n", name.c_str(), value_of(*o, name, resolved).c_str(), origin);
  }
  return out;
}

}  // namespace sluice
