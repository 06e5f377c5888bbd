// Options from a YAML file: a key is an option's long name, with dashes or underscores. Only
// config_file.cc knows the YAML library.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

struct ConfigEntry {
  std::string option;               // "max-seqs"
  std::vector<std::string> values;  // several where the option may be repeated
  int line = 0;
};

struct ConfigFile {
  std::vector<ConfigEntry> entries;
  std::vector<std::string> unused;  // keys that mean nothing here: "model_config.zactivate_len"
};

// A flat map of options, or the nested file of earlier serving scripts (model_config,
// serving_config, pa_config): of that what has a meaning here is translated, the rest is `unused`.
Result<ConfigFile> read_config(const std::string& path);
Result<ConfigFile> parse_config(const std::string& text);

}  // namespace sluice
