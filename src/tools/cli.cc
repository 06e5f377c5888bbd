// The command line: from words to a command's options to its result. Only the files cli*.cc and
// help_format.h know CLI11.
#include "tools/cli.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/str.h"
#include "tools/chat/command.h"
#include "tools/cli_commands.h"
#include "tools/cli_config.h"
#include "tools/flag_aliases.h"
#include "tools/help_format.h"

namespace sluice {

namespace {

// The command that the first words name, and how many they are.
CLI::App* find_command(CLI::App& app, const std::vector<std::string>& words, size_t& depth) {
  CLI::App* command = &app;
  for (depth = 0; depth < words.size(); ++depth) {
    auto next = command->get_subcommands([&](CLI::App* a) { return a->check_name(words[depth]); });
    if (next.empty()) break;
    command = next.front();
  }
  return command;
}

std::string path_of(const std::vector<std::string>& words, size_t depth) {
  std::string path;
  for (size_t i = 0; i < depth; ++i) path += (i > 0 ? " " : "") + words[i];
  return path;
}

// `config show COMMAND ...` is that command, shown instead of done.
bool take_show(std::vector<std::string>& words) {
  bool help = words.size() == 3 && (words[2] == "-h" || words[2] == "--help");
  if (words.size() < 2 || words[0] != "config" || words[1] != "show" || help) return false;
  words.erase(words.begin(), words.begin() + 2);
  if (words.empty() || words[0].starts_with('-')) words.insert(words.begin(), "serve");
  return true;
}

// Words of one of the command's flags, as replace_foreign_flags() asks.
int flag_words(const CLI::App& command, std::string_view flag) {
  const CLI::Option* o = command.get_option_no_throw(std::string(flag));
  return !o ? -1 : o->get_expected_max() == 0 ? 0 : 1;
}

// "; do you mean --threads?", or nothing.
std::string suggest(const CLI::App& command, const std::vector<std::string>& unknown) {
  for (const std::string& word : unknown) {
    if (!word.starts_with("--")) continue;
    std::vector<std::string_view> names;
    for (const CLI::Option* o : command.get_options())
      for (const std::string& name : o->get_lnames()) names.push_back(name);
    const std::string typed = word.substr(2, word.find('=') - 2);
    const std::string_view near = nearest_word(typed, names);
    if (!near.empty()) return strf("; do you mean --%s?", std::string(near).c_str());
  }
  return "";
}

int report_parse_error(const CLI::App& app, const CLI::ParseError& e) {
  std::string name = "sluice";
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  std::string what = e.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  if (dynamic_cast<const CLI::ExtrasError*>(&e)) what += suggest(*at, app.remaining(true));
  std::fprintf(stderr, "sluice: %s (see %s --help)\n", what.c_str(), name.c_str());
  return kExitUsage;
}

}  // namespace

int run_cli(int argc, char** argv) {
  CommandLine c;
  CLI::App app("sluice: serve open-weight language models from one binary", "sluice");
  app.require_subcommand(1);
  app.set_version_flag("--version", SLUICE_VERSION, "show the version");
  app.formatter(std::make_shared<HelpFormat>());
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "show this");
  add_commands(app, c);
  if (argc < 2) {
    std::printf("%s", app.help().c_str());
    return kExitOk;
  }
  std::vector<std::string> words(argv + 1, argv + argc);
  bool show = take_show(words);
  size_t depth = 0;
  CLI::App* command = find_command(app, words, depth);
  // An unknown word in a command's place is that, and not a missing command.
  if (depth == 0 && !words[0].starts_with('-')) {
    std::vector<std::string_view> names;
    for (const CLI::App* a : app.get_subcommands([](CLI::App*) { return true; }))
      names.push_back(a->get_name());
    const std::string near(nearest_word(words[0], names));
    std::fprintf(stderr, "sluice: no command %s%s (see sluice --help)\n", quote(words[0]).c_str(),
                 near.empty() ? "" : strf("; do you mean %s?", near.c_str()).c_str());
    return kExitUsage;
  }
  std::vector<std::string> rest(words.begin() + static_cast<ptrdiff_t>(depth), words.end());
  Result<std::vector<std::string>> replaced =
      replace_foreign_flags(path_of(words, depth), rest,
                            [&](std::string_view flag) { return flag_words(*command, flag); });
  if (!replaced) return report(replaced.error());
  rest = std::move(*replaced);
  Result<std::vector<OptionOrigin>> outside = add_outside_options(*command, rest);
  if (!outside) return report(outside.error());
  words.resize(depth);
  words.insert(words.end(), rest.begin(), rest.end());
  std::reverse(words.begin(), words.end());  // as the parser takes them
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return report_parse_error(app, e);
  }
  if (show) {
    std::fputs(describe_options(*command, *outside, c.resolved()).c_str(), stdout);
    return kExitOk;
  }
  return c.action();
}

}  // namespace sluice
