// The commands of a conversation ("/set temperature 0.7") and the settings they change. Pure
// functions.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tools/commands.h"

namespace sluice {

struct ChatCommand {
  std::string name;      // without the slash
  std::string argument;  // the rest, without space around it
  bool forced = false;   // "/save! x"
};

// Nothing for a line that is a message: one that does not begin with a slash.
std::optional<ChatCommand> parse_command(std::string_view line);

// The word that a typing error may have meant, or empty.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> words);

// "temperature" and "0.7"; what is not a setting or not its kind of value changes nothing.
Result<void> change_setting(SamplingOptions& options, std::string key, const std::string& value);
// All settings and their values, a line each.
std::string list_settings(const SamplingOptions& options);

}  // namespace sluice
