#include "load/hf_directory.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "base/json.h"
#include "base/str.h"
#include "load/hf_checkpoint.h"
#include "load/hf_text.h"
#include "load/read_file.h"

namespace sluice {
namespace {

constexpr size_t kMaxConfig = 4 << 20;

Error at_path(const std::string& path, const Error& e) {
  return Error{e.code, quote(path, 400) + ": " + e.message};
}

// quantization_config of config.json (compression_config in older compressed-tensors), or the
// quantize_config.json that older GPTQ files have.
Result<std::optional<HfQuant>> read_quant(const std::string& directory,
                                          const json::object& config) {
  const json::value* v = config.if_contains("quantization_config");
  if (!v) v = config.if_contains("compression_config");
  if (v && v->is_object()) {
    auto quant = parse_hf_quant(v->get_object());
    if (!quant) return at_path(directory + "/config.json", quant.error());
    return std::optional<HfQuant>(*quant);
  }
  const std::string path = directory + "/quantize_config.json";
  auto text = read_whole_file(path, kMaxConfig);
  if (!text && text.error().code == 404) return std::optional<HfQuant>();
  if (!text) return text.error();
  auto parsed = parse_json(*text);
  if (!parsed) return at_path(path, parsed.error());
  if (!parsed->is_object()) return at_path(path, Error{400, "must be a JSON object"});
  json::object& o = parsed->get_object();
  if (!o.contains("quant_method")) o["quant_method"] = "gptq";
  auto quant = parse_hf_quant(o);
  if (!quant) return at_path(path, quant.error());
  return std::optional<HfQuant>(*quant);
}

std::string name_of(const std::string& directory) {
  std::error_code ec;
  return std::filesystem::canonical(directory, ec).filename().string();
}

Result<std::string> read_config(const std::string& directory) {
  auto text = read_whole_file(directory + "/config.json", kMaxConfig);
  if (text || text.error().code != 404) return text;
  return Error{404, quote(directory, 400) +
                        ": has no config.json; give a model's directory with config.json and "
                        "safetensors files, or a .gguf file"};
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_hf_directory(const std::string& directory) {
  auto text = read_config(directory);
  if (!text) return text.error();
  const std::string config_path = directory + "/config.json";
  auto parsed = parse_json(*text);
  if (!parsed) return at_path(config_path, parsed.error());
  auto config = parse_hf_config(*text);
  if (!config) return at_path(config_path, config.error());
  auto quant = read_quant(directory, parsed->get_object());
  if (!quant) return quant.error();
  auto shards = HfShards::open(directory);
  if (!shards) return shards.error();
  auto checkpoint = std::make_unique<HfCheckpoint>();
  if (auto ok = checkpoint->add_tensors(*config, *quant, std::move(*shards)); !ok) {
    const bool named = ok.error().message.starts_with('\'');
    return named ? ok.error() : at_path(directory, ok.error());
  }
  checkpoint->log_decoded();
  Meta& meta = checkpoint->mutable_meta();
  write_meta(*config, meta);
  if (const std::string name = name_of(directory); !name.empty()) meta.set("general.name", name);
  if (auto ok = read_hf_text(directory, &parsed->get_object(), meta); !ok) return ok.error();
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

Result<std::unique_ptr<Checkpoint>> open_hf_text(const std::string& directory) {
  auto checkpoint = std::make_unique<HfCheckpoint>();
  json::object config;
  auto text = read_whole_file(directory + "/config.json", kMaxConfig);
  if (!text && text.error().code != 404) return text.error();
  if (text) {
    auto parsed = parse_json(*text);
    if (!parsed) return at_path(directory + "/config.json", parsed.error());
    if (parsed->is_object()) config = std::move(parsed->get_object());
  }
  Meta& meta = checkpoint->mutable_meta();
  if (auto ok = read_hf_text(directory, &config, meta); !ok) return ok.error();
  if (!meta.has("tokenizer.huggingface.json") && !meta.has("tokenizer.sentencepiece.model") &&
      !meta.has("tokenizer.chat_template")) {
    return Error{
        404, quote(directory, 400) + ": has no tokenizer.json, tokenizer.model or chat template"};
  }
  return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace sluice
