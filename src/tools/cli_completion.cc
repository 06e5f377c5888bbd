#include "tools/cli_completion.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/str.h"

namespace sluice {

namespace {

struct Command {
  std::string path;  // " bench serve"; empty: the program itself
  const CLI::App* app;
};

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& out) {
  out.push_back({path, &app});
  for (const CLI::App* sub : app.get_subcommands(std::function<bool(const CLI::App*)>()))
    collect(*sub, path + " " + sub->get_name(), out);
}

std::vector<std::string> subcommands(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::App* sub : app.get_subcommands(std::function<bool(const CLI::App*)>()))
    out.push_back(sub->get_name());
  return out;
}

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  std::string out;
  for (const std::string& w : words) out += (out.empty() ? "" : between) + w;
  return out;
}

// The words an option may be, where they are a closed set: of "TEXT:{a,b}" a and b.
std::vector<std::string> choices(const CLI::Option& o) {
  std::string type = o.get_type_name();
  size_t open = type.find('{'), close = type.find('}');
  std::vector<std::string> out;
  if (open == type.npos || close == type.npos) return out;
  for (size_t at = open + 1; at < close;) {
    size_t comma = std::min(type.find(',', at), close);
    out.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

bool takes_value(const CLI::Option& o) { return o.get_expected_max() != 0; }

std::string first_line(const CLI::Option& o) {
  std::string text = o.get_description();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// Inside single quotes; `also` are characters that the shell's own format needs escaped.
std::string escaped(const std::string& text, const char* also = "") {
  std::string out;
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (std::string_view(also).find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string bash_script(const std::vector<Command>& commands) {
  std::string out =
      "# sluice completion bash > /usr/share/bash-completion/completions/sluice\n"
      "_sluice() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} at= words= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$at ${COMP_WORDS[i]}\" in\n";
  std::vector<std::string> paths;
  for (const Command& c : commands) {
    if (!c.path.empty()) paths.push_back("\"" + c.path + "\"");
  }
  out += "      " + joined(paths, " | ") + ") at+=\" ${COMP_WORDS[i]}\" ;;\n    esac\n  done\n";
  out += "  case \"$at:$prev\" in\n";
  for (const Command& c : commands) {
    for (const CLI::Option* o : c.app->get_options()) {
      for (const std::string& name : o->get_lnames()) {
        if (std::vector<std::string> words = choices(*o); !words.empty())
          out += strf("    \"%s:--%s\") words='%s' ;;\n", c.path.c_str(), name.c_str(),
                      joined(words).c_str());
      }
    }
  }
  out +=
      "  esac\n"
      "  if [[ -n $words ]]; then\n"
      "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
      "    return\n"
      "  fi\n"
      "  case $at in\n";
  for (const Command& c : commands) {
    std::vector<std::string> words = subcommands(*c.app);
    for (const CLI::Option* o : c.app->get_options()) {
      for (const std::string& name : o->get_lnames()) words.push_back("--" + name);
    }
    out += strf("    \"%s\") words='%s' ;;\n", c.path.c_str(), joined(words).c_str());
  }
  out +=
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
      "  [[ $cur == -* ]] || mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$cur\")\n"
      "}\n"
      "complete -o filenames -F _sluice sluice\n";
  return out;
}

std::string function_name(const std::string& path) {
  std::string out = "_sluice" + path;
  std::replace(out.begin(), out.end(), ' ', '_');
  return out;
}

std::string zsh_script(const std::vector<Command>& commands) {
  std::string out = "#compdef sluice\n# sluice completion zsh > \"${fpath[1]}/_sluice\"\n\n";
  for (const Command& c : commands) {
    out += function_name(c.path) + "() {\n  _arguments -C \\\n";
    for (const CLI::Option* o : c.app->get_options()) {
      std::vector<std::string> words = choices(*o);
      for (const std::string& name : o->get_lnames()) {
        out += strf("    '--%s[%s]", name.c_str(), escaped(first_line(*o), "[]:").c_str());
        if (!words.empty()) {
          out += ":value:(" + joined(words) + ")";
        } else if (takes_value(*o)) {
          out += ":value:_files";
        }
        out += "' \\\n";
      }
    }
    std::vector<std::string> subs = subcommands(*c.app);
    if (subs.empty()) {
      out += "    '*:file:_files'\n}\n\n";
      continue;
    }
    out += strf("    '1:command:(%s)' '*::argument:->rest'\n", joined(subs).c_str());
    out += "  [[ $state == rest ]] && case $words[1] in\n";
    for (const std::string& s : subs)
      out += strf("    %s) %s ;;\n", s.c_str(), function_name(c.path + " " + s).c_str());
    out += "  esac\n}\n\n";
  }
  return out + "_sluice \"$@\"\n";
}

std::string fish_script(const std::vector<Command>& commands) {
  std::string out = "# sluice completion fish > ~/.config/fish/completions/sluice.fish\n";
  for (const Command& c : commands) {
    std::string when = "__fish_use_subcommand";
    if (!c.path.empty()) {
      when.clear();
      size_t at = 1;
      while (at <= c.path.size()) {
        size_t space = std::min(c.path.find(' ', at), c.path.size());
        when += (when.empty() ? "" : "; and ") +
                ("__fish_seen_subcommand_from " + c.path.substr(at, space - at));
        at = space + 1;
      }
    }
    for (const CLI::App* sub : c.app->get_subcommands(std::function<bool(const CLI::App*)>())) {
      std::string text = sub->get_description();
      std::replace(text.begin(), text.end(), '\n', ' ');
      out += strf("complete -c sluice -n '%s' -a %s -d '%s'\n", when.c_str(),
                  sub->get_name().c_str(), escaped(text).c_str());
    }
    for (const CLI::Option* o : c.app->get_options()) {
      if (o->get_lnames().empty()) continue;
      out += strf("complete -c sluice -n '%s'", when.c_str());
      for (const std::string& name : o->get_snames()) out += " -s " + name;
      for (const std::string& name : o->get_lnames()) out += " -l " + name;
      if (std::vector<std::string> words = choices(*o); !words.empty())
        out += " -x -a '" + joined(words) + "'";
      else if (takes_value(*o))
        out += " -r";
      out += " -d '" + escaped(first_line(*o)) + "'\n";
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, Shell shell) {
  std::vector<Command> commands;
  collect(app, "", commands);
  switch (shell) {
    case Shell::bash:
      return bash_script(commands);
    case Shell::zsh:
      return zsh_script(commands);
    case Shell::fish:
      return fish_script(commands);
  }
  return {};
}

}  // namespace sluice
