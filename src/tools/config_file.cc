#include "tools/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxBytes = 1 << 20;

// Where a nested key goes. `largest`: of a list, the largest number counts.
struct Translation {
  const char* key;
  const char* option;
  bool largest = false;
};

constexpr Translation kTranslations[] = {
    {"model_config.model_name", "served-model-name"},
    {"model_config.decode_batch_size", "max-seqs", true},
    {"model_config.batching_strategy", "batching"},
    {"model_config.seq_length", "ctx", true},
    {"pa_config.block_size", "block-size"},
    {"pa_config.num_blocks", "kv-blocks"},
    {"serving_config.server_ip", "host"},
    {"serving_config.server_port", "port"},
};

constexpr const char* kSections[] = {"model_config", "serving_config", "pa_config",    "tokenizer",
                                     "basic_inputs", "extra_inputs",   "warmup_inputs"};

bool is_section(const std::string& key) {
  return std::any_of(std::begin(kSections), std::end(kSections),
                     [&](const char* s) { return key == s; });
}

std::string option_name(std::string key) {
  std::replace(key.begin(), key.end(), '_', '-');
  return key;
}

Result<std::vector<std::string>> values_of(const YAML::Node& node, const std::string& key) {
  if (node.IsScalar()) return std::vector<std::string>{node.Scalar()};
  auto wrong = Error{400, strf("line %d: %s must be a value or a list of values",
                               node.Mark().line + 1, quote(key).c_str())};
  if (!node.IsSequence()) return wrong;
  std::vector<std::string> out;
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return wrong;
    out.push_back(item.Scalar());
  }
  return out;
}

std::string largest(const std::vector<std::string>& values) {
  auto number = [](const std::string& s) { return std::strtod(s.c_str(), nullptr); };
  return *std::max_element(values.begin(), values.end(),
                           [&](const auto& a, const auto& b) { return number(a) < number(b); });
}

Result<void> add_section(const std::string& section, const YAML::Node& map, ConfigFile& out) {
  if (!map.IsMap())
    return Error{400, strf("line %d: %s must hold keys", map.Mark().line + 1, section.c_str())};
  for (const auto& pair : map) {
    std::string key = section + "." + pair.first.Scalar();
    const auto* to = std::find_if(std::begin(kTranslations), std::end(kTranslations),
                                  [&](const Translation& t) { return key == t.key; });
    if (to == std::end(kTranslations)) {
      out.unused.push_back(key);
      continue;
    }
    Result<std::vector<std::string>> values = values_of(pair.second, key);
    if (!values) return values.error();
    if (values->empty()) continue;
    if (to->largest) *values = {largest(*values)};
    out.entries.push_back({to->option, std::move(*values), pair.first.Mark().line + 1});
  }
  return {};
}

Result<ConfigFile> read_map(const YAML::Node& root) {
  ConfigFile out;
  if (root.IsNull()) return out;
  if (!root.IsMap()) return Error{400, "a configuration must be a map of options to values"};
  for (const auto& pair : root) {
    if (!pair.first.IsScalar())
      return Error{400, strf("line %d: an option's name must be text", pair.first.Mark().line + 1)};
    const std::string& key = pair.first.Scalar();
    if (is_section(key)) {
      if (auto ok = add_section(key, pair.second, out); !ok) return ok.error();
      continue;
    }
    if (pair.second.IsNull()) continue;
    Result<std::vector<std::string>> values = values_of(pair.second, key);
    if (!values) return values.error();
    out.entries.push_back({option_name(key), std::move(*values), pair.first.Mark().line + 1});
  }
  return out;
}

}  // namespace

Result<ConfigFile> parse_config(const std::string& text) {
  try {
    return read_map(YAML::Load(text));
  } catch (const YAML::Exception& e) {
    return Error{400, strf("line %d: %s", e.mark.line + 1, e.msg.c_str())};
  }
}

Result<ConfigFile> read_config(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  if (!in || (in.read(text.data(), kMaxBytes + 1), in.bad()))
    return Error{404, strf("cannot read the configuration %s", quote(path).c_str())};
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxBytes)
    return Error{400, strf("%s is too large for a configuration", quote(path).c_str())};
  Result<ConfigFile> out = parse_config(text);
  if (!out) return Error{out.error().code, quote(path) + ": " + out.error().message};
  return out;
}

}  // namespace sluice
