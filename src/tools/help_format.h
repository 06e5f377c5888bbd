// How help texts look: one line per option, its value as N, X, TEXT or the words it may be, its
// default at the end. For cli.cc.
#pragma once

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>

namespace sluice {

class HelpFormat final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    // Of "--no-pin{false}", what is typed.
    return name.substr(0, name.find('{'));
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_type_size() == 0) return "";
    std::string type = option->get_type_name();
    if (size_t open = type.find('{'); open != std::string::npos) {
      type = type.substr(open + 1, type.find('}') - open - 1);
      if (type.size() > 70) return " NAME";  // the description lists them
      std::replace(type.begin(), type.end(), ',', '|');
      return " " + type;
    }
    if (type.ends_with(":SIZE")) return " SIZE";
    if (type.starts_with("INT") || type.starts_with("UINT")) return " N";
    if (type.starts_with("FLOAT")) return " X";
    return type.empty() ? "" : " " + type;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) text += " [" + option->get_default_str() + "]";
    return text;
  }
};

}  // namespace sluice
