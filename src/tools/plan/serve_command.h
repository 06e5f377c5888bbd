// The command that runs what a plan simulated. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// An option of the command line and its values; without any: a flag.
struct GivenOption {
  std::string name;  // "--ctx"
  std::vector<std::string> values;
};

// A word that a shell takes as it is.
std::string shell_word(std::string_view text);

// "--ctx 4096 --no-fuse", each word for a shell.
std::string option_words(std::span<const GivenOption> options);

// `sluice serve` with the options given, but for those that `chosen` has too, and those.
std::string serve_command(const std::string& model,
                          std::span<const GivenOption> given,
                          std::span<const GivenOption> chosen);

// The same for workers of both roles, and the router in front of them: a line each, with names in
// capitals for what only the machines know.
std::vector<std::string> split_commands(const std::string& model,
                                        std::span<const GivenOption> given,
                                        std::span<const GivenOption> chosen,
                                        int prefill,
                                        int decode);

}  // namespace sluice
