#include "load/hf_text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/str.h"
#include "load/hf_fields.h"
#include "load/read_file.h"

namespace sluice {
namespace {

constexpr size_t kMaxVocabulary = 512 << 20;
constexpr size_t kMaxSettings = 64 << 20;
constexpr const char* kSpecials[] = {"bos", "eos", "unk", "pad"};

// GGUF's word for it.
std::string id_key(const std::string& special) {
  const std::string word = special == "unk" ? "unknown" : special == "pad" ? "padding" : special;
  return "tokenizer.ggml." + word + "_token_id";
}

// Nothing when there is no such file.
Result<std::optional<std::string>> read_if_there(const std::string& path, size_t max) {
  auto text = read_whole_file(path, max);
  if (text) return std::optional<std::string>(std::move(*text));
  if (text.error().code == 404) return std::optional<std::string>();
  return text.error();
}

// The object in a settings file; empty when there is no such file.
Result<json::object> read_settings(const std::string& path) {
  auto text = read_if_there(path, kMaxSettings);
  if (!text) return text.error();
  if (!*text) return json::object();
  auto parsed = parse_json(**text);
  if (!parsed) return Error{400, quote(path, 400) + ": " + parsed.error().message};
  if (!parsed->is_object()) return Error{400, quote(path, 400) + ": must be a JSON object"};
  return std::move(parsed->get_object());
}

// "x" or {"content": "x"}.
const json::string* token_text(const json::value& v) {
  if (const json::object* o = v.if_object()) {
    const json::value* content = o->if_contains("content");
    return content ? content->if_string() : nullptr;
  }
  return v.if_string();
}

// An id or a list of them.
std::vector<int64_t> token_ids(const json::object& o, const char* key) {
  std::vector<int64_t> ids;
  auto take = [&](const json::value& v) {
    if (const int64_t* id = v.if_int64(); id && *id >= 0 && *id <= INT32_MAX) ids.push_back(*id);
  };
  if (const json::value* v = o.if_contains(key)) {
    if (const json::array* list = v->if_array()) {
      for (const json::value& x : *list) take(x);
    } else {
      take(*v);
    }
  }
  return ids;
}

// Ids of the tokens that tokenizer_config.json lists.
std::map<std::string, int64_t, std::less<>> added_tokens(const json::object& settings) {
  std::map<std::string, int64_t, std::less<>> ids;
  const json::value* list = settings.if_contains("added_tokens_decoder");
  if (!list || !list->is_object()) return ids;
  for (const auto& member : list->get_object()) {
    const std::string key(member.key());
    const json::string* text = token_text(member.value());
    if (!text || key.empty() || key.size() > 9 ||
        key.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    ids.emplace(*text, std::stoll(key));
  }
  return ids;
}

// A special token is what tokenizer_config.json says by its spelling (a null: there is none), else
// special_tokens_map.json, else what config.json says by number.
void set_specials(const json::object& settings,
                  const json::object& map,
                  const json::object& config,
                  Meta& meta) {
  const auto ids = added_tokens(settings);
  for (const char* special : kSpecials) {
    const std::string key = std::string(special) + "_token";
    const json::value* said = settings.if_contains(key);
    if (!said) said = map.if_contains(key);
    if (said && said->is_null()) continue;
    std::vector<int64_t> by_number = token_ids(config, (key + "_id").c_str());
    if (const json::string* text = said ? token_text(*said) : nullptr) {
      meta.set("tokenizer.huggingface." + key, std::string(*text));
      by_number.clear();  // the vocabulary knows the spelling's number
      if (auto it = ids.find(std::string_view(*text)); it != ids.end()) by_number = {it->second};
    }
    if (!by_number.empty()) meta.set(id_key(special), by_number.front());
  }
  if (const json::value* v = settings.if_contains("tokenizer_class"); v && v->is_string())
    meta.set("tokenizer.huggingface.class", std::string(v->get_string()));
  for (const char* key : {"add_bos_token", "add_eos_token"}) {
    const json::value* v = settings.if_contains(key);
    if (v && v->is_bool()) meta.set(std::string("tokenizer.ggml.") + key, v->get_bool());
  }
}

void set_ends(const json::object& generation, const json::object& config, Meta& meta) {
  std::vector<int64_t> ends = token_ids(generation, "eos_token_id");
  if (ends.empty()) ends = token_ids(config, "eos_token_id");
  if (auto eos = meta.integer("tokenizer.ggml.eos_token_id")) ends.push_back(*eos);
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (!ends.empty()) meta.set("tokenizer.ggml.eos_token_ids", std::move(ends));
}

Result<void> set_sampling(const json::object& generation, const std::string& path, Meta& meta) {
  std::string error;
  HfFields f(generation, error);
  if (!f.boolean("do_sample", false)) return {};
  const struct {
    const char *key, *gguf;
    double lo, hi;
  } numbers[] = {{"temperature", "temp", 0, 100},
                 {"top_p", "top_p", 0, 1},
                 {"min_p", "min_p", 0, 1},
                 {"repetition_penalty", "penalty_repeat", 1e-3, 100}};
  for (const auto& n : numbers) {
    if (!f.find(n.key)) continue;
    meta.set(std::string("general.sampling.") + n.gguf, f.number(n.key, n.lo, n.hi));
  }
  if (f.find("top_k")) {
    meta.set("general.sampling.top_k", static_cast<int64_t>(f.integer("top_k", -1, 1 << 24)));
  }
  if (!error.empty()) return Error{400, quote(path, 400) + ": " + error};
  return {};
}

// chat_template.jinja, else chat_template of tokenizer_config.json or chat_template.json: a string,
// or a list of {name, template}.
Result<void> set_template(const std::string& directory, const json::object& settings, Meta& meta) {
  auto file = read_if_there(directory + "/chat_template.jinja", kMaxSettings);
  if (!file) return file.error();
  if (*file) {
    meta.set("tokenizer.chat_template", std::move(**file));
    return {};
  }
  json::object other;
  const json::value* v = settings.if_contains("chat_template");
  if (!v) {
    auto read = read_settings(directory + "/chat_template.json");
    if (!read) return read.error();
    other = std::move(*read);
    v = other.if_contains("chat_template");
  }
  if (!v || v->is_null()) return {};
  if (const json::string* text = v->if_string()) {
    meta.set("tokenizer.chat_template", std::string(*text));
    return {};
  }
  const json::array* list = v->if_array();
  for (const json::value& entry : list ? *list : json::array{nullptr}) {
    const json::object* o = entry.if_object();
    const json::value* name = o ? o->if_contains("name") : nullptr;
    const json::value* source = o ? o->if_contains("template") : nullptr;
    if (!name || !name->is_string() || !source || !source->is_string()) {
      return Error{400, quote(directory, 400) +
                            ": chat_template must be a string or a list of {name, template}"};
    }
    const std::string key(name->get_string());
    meta.set(key == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + key,
             std::string(source->get_string()));
  }
  return {};
}

}  // namespace

Result<void> read_hf_text(const std::string& directory, const json::object* config, Meta& meta) {
  const std::pair<const char*, const char*> vocabularies[] = {
      {"/tokenizer.json", "tokenizer.huggingface.json"},
      {"/tokenizer.model", "tokenizer.sentencepiece.model"}};
  for (const auto& [name, key] : vocabularies) {
    auto text = read_if_there(directory + name, kMaxVocabulary);
    if (!text) return text.error();
    if (*text) meta.set(key, std::move(**text));
  }
  const std::string generation_path = directory + "/generation_config.json";
  auto settings = read_settings(directory + "/tokenizer_config.json");
  if (!settings) return settings.error();
  auto map = read_settings(directory + "/special_tokens_map.json");
  if (!map) return map.error();
  auto generation = read_settings(generation_path);
  if (!generation) return generation.error();
  const json::object none;
  set_specials(*settings, *map, config ? *config : none, meta);
  set_ends(*generation, config ? *config : none, meta);
  if (auto ok = set_sampling(*generation, generation_path, meta); !ok) return ok.error();
  return set_template(directory, *settings, meta);
}

}  // namespace sluice
