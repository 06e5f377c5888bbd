#include "hub/repository.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/json.h"
#include "base/str.h"
#include "hub/hub_name.h"

namespace sluice {

namespace {

// What to take where nobody says: four bits first, then more, then less.
constexpr const char* kQuantOrder[] = {"Q4_K_M", "Q4_K",   "Q4_K_S", "Q4_1",   "Q4_0", "Q5_K_M",
                                       "Q5_K",   "Q5_K_S", "Q5_1",   "Q5_0",   "Q6_K", "Q8_0",
                                       "Q3_K_M", "Q3_K_L", "Q3_K",   "Q3_K_S", "Q2_K", "BF16",
                                       "F16",    "FP16",   "F32"};

// Of a directory, beside weights and their index.
constexpr const char* kTextFiles[] = {"config.json",
                                      "generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer.model",
                                      "tokenizer_config.json",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "chat_template.jinja",
                                      "chat_template.json",
                                      "quantize_config.json",
                                      "quant_config.json"};
constexpr const char* kIndex = "model.safetensors.index.json";

std::string upper(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return out;
}

bool is_hex(std::string_view s, size_t size) {
  return s.size() == size && s.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// "name" and 2 of "name-00001-of-00002.gguf"; "name" and 1 of "name.gguf".
struct GgufName {
  std::string stem;
  int part = 1, count = 1;
};

GgufName gguf_name(std::string_view path) {
  std::string_view stem = path.substr(0, path.size() - 5);
  constexpr size_t kTail = std::string_view("-00001-of-00002").size();
  if (stem.size() > kTail) {
    std::string_view tail = stem.substr(stem.size() - kTail);
    std::string_view part = tail.substr(1, 5), count = tail.substr(10, 5);
    auto digits = [](std::string_view s) {
      return s.find_first_not_of("0123456789") == std::string_view::npos;
    };
    if (tail[0] == '-' && tail.substr(6, 4) == "-of-" && digits(part) && digits(count))
      return {std::string(stem.substr(0, stem.size() - kTail)), std::stoi(std::string(part)),
              std::stoi(std::string(count))};
  }
  return {std::string(stem), 1, 1};
}

// Models, not what lies beside them: vision projectors, importance matrices.
bool is_model_gguf(std::string_view path) {
  std::string name = upper(file_name(path));
  return name.ends_with(".GGUF") && name.find("MMPROJ") == std::string::npos &&
         name.find("IMATRIX") == std::string::npos;
}

// A GGUF model: its parts in order.
struct Candidate {
  std::string label;
  int count = 1;
  std::vector<const RepoFile*> parts;
};

std::map<std::string, Candidate> gguf_models(const std::vector<RepoFile>& files) {
  std::map<std::string, Candidate> found;  // by stem
  for (const RepoFile& f : files) {
    if (!is_model_gguf(f.path)) continue;
    GgufName name = gguf_name(f.path);
    Candidate& c = found[name.stem];
    c.label = quant_label(f.path);
    c.count = name.count;
    c.parts.push_back(&f);
  }
  for (auto& [stem, c] : found)
    std::ranges::sort(c.parts, {}, [](const RepoFile* f) { return f->path; });
  return found;
}

std::string listed(const std::map<std::string, Candidate>& models) {
  std::string out;
  for (const auto& [stem, c] : models) {
    uint64_t bytes = 0;
    for (const RepoFile* f : c.parts) bytes += f->size;
    std::string name = c.label.empty() ? c.parts.front()->path : c.label;
    out += (out.empty() ? "" : ", ") + name + " (" + human_bytes(bytes) + ")";
  }
  return out;
}

bool is_meant(const std::string& quant, const std::string& stem, const Candidate& c) {
  std::string want = upper(quant);
  return want == upper(c.label) || want == upper(stem) || want == upper(c.parts.front()->path) ||
         want == upper(file_name(c.parts.front()->path));
}

Result<ModelFiles> gguf_files(const std::map<std::string, Candidate>& models,
                              const std::string& quant,
                              const std::string& repo_id) {
  std::vector<const Candidate*> fits;
  for (const auto& [stem, c] : models)
    if (is_meant(quant, stem, c)) fits.push_back(&c);
  if (fits.empty())
    return Error{404, strf("hf:%s has no %s; there is %s", repo_id.c_str(), quote(quant).c_str(),
                           listed(models).c_str())};
  const Candidate& c = *fits[0];
  if (fits.size() > 1)
    return Error{400,
                 strf("hf:%s has several files of %s; name one, like hf:%s:%s", repo_id.c_str(),
                      quant.c_str(), repo_id.c_str(), c.parts.front()->path.c_str())};
  if (c.parts.size() != static_cast<size_t>(c.count))
    return Error{404, strf("hf:%s has %zu of the %d parts of %s", repo_id.c_str(), c.parts.size(),
                           c.count, c.parts.front()->path.c_str())};
  ModelFiles out;
  out.quant = c.label.empty() ? c.parts.front()->path : c.label;
  out.main = c.parts.front()->path;
  for (const RepoFile* f : c.parts) out.files.push_back(*f);
  return out;
}

const RepoFile* find_file(const std::vector<RepoFile>& files, std::string_view path) {
  for (const RepoFile& f : files)
    if (f.path == path) return &f;
  return nullptr;
}

// Nothing where the repository holds no safetensors model.
std::optional<ModelFiles> directory_files(const std::vector<RepoFile>& files) {
  if (!find_file(files, "config.json")) return std::nullopt;
  ModelFiles out;
  if (const RepoFile* whole = find_file(files, "model.safetensors")) {
    out.files.push_back(*whole);
  } else if (const RepoFile* index = find_file(files, kIndex)) {
    out.files.push_back(*index);
    out.index = kIndex;
  } else {
    for (const RepoFile& f : files) {
      bool weights = f.path.ends_with(".safetensors") && f.path.find('/') == std::string::npos &&
                     !f.path.starts_with("adapter_");
      if (weights) out.files.push_back(f);
    }
    if (out.files.size() != 1) return std::nullopt;
  }
  for (const char* name : kTextFiles)
    if (const RepoFile* f = find_file(files, name)) out.files.push_back(*f);
  return out;
}

}  // namespace

Result<Repository> parse_repository(std::string_view text, const std::string& id) {
  auto bad = [&](const char* what) {
    return Error{500, strf("the hub's answer about %s is not understood: %s", id.c_str(), what)};
  };
  Result<json::value> parsed = parse_json(text, kRequestJson);
  if (!parsed) return bad(parsed.error().message.c_str());
  const json::object* top = parsed->if_object();
  const json::value* sha = top ? top->if_contains("sha") : nullptr;
  const json::value* list = top ? top->if_contains("siblings") : nullptr;
  if (!sha || !sha->is_string() || !is_hex(sha->get_string(), 40)) return bad("no commit in it");
  if (!list || !list->is_array()) return bad("no list of files in it");
  Repository repo{id, std::string(sha->get_string()), {}};
  std::set<std::string> seen;
  for (const json::value& v : list->get_array()) {
    const json::object* o = v.if_object();
    const json::value* path = o ? o->if_contains("rfilename") : nullptr;
    if (!path || !path->is_string()) return bad("a file without a name");
    RepoFile f;
    f.path = std::string(path->get_string());
    if (!is_safe_path(f.path) || !seen.insert(f.path).second)
      return Error{500, strf("hf:%s lists a file named %s, which leads out of its folder or is "
                             "there twice: refused",
                             id.c_str(), quote(f.path).c_str())};
    if (const json::value* size = o->if_contains("size"); size && size->is_number()) {
      boost::system::error_code ec;
      f.size = size->to_number<uint64_t>(ec);
      if (ec) return bad("a file of no size");
    }
    const json::value* lfs = o->if_contains("lfs");
    if (lfs && lfs->is_object()) {
      const json::value* hash = lfs->get_object().if_contains("sha256");
      if (!hash) hash = lfs->get_object().if_contains("oid");
      if (!hash || !hash->is_string() || !is_hex(hash->get_string(), 64))
        return bad("a file in LFS without its SHA-256");
      f.sha256 = std::string(hash->get_string());
    } else if (const json::value* blob = o->if_contains("blobId"); blob && blob->is_string()) {
      if (is_hex(blob->get_string(), 40)) f.git_sha1 = std::string(blob->get_string());
    }
    repo.files.push_back(std::move(f));
  }
  return repo;
}

std::string quant_label(std::string_view path) {
  if (!upper(path).ends_with(".GGUF")) return "";
  std::string stem = upper(file_name(gguf_name(path).stem));
  auto is_label = [](std::string_view s) {
    if (s.starts_with("UD-")) s.remove_prefix(3);
    auto quantised = [&](std::string_view letters) {
      return s.size() > letters.size() && s.starts_with(letters) && s[letters.size()] >= '0' &&
             s[letters.size()] <= '9';
    };
    bool known = quantised("Q") || quantised("IQ") || quantised("TQ") || quantised("MXFP");
    for (const char* word : {"BF16", "F16", "FP16", "F32", "FP32"}) known |= s == word;
    return known && s.find_first_of("-. ") == std::string_view::npos;
  };
  for (size_t at = 0; at < stem.size(); ++at) {  // from the left, so that UD- belongs to it
    bool begins = at == 0 || std::string_view("-._ ").find(stem[at - 1]) != std::string_view::npos;
    if (begins && is_label(std::string_view(stem).substr(at))) return stem.substr(at);
  }
  return "";
}

Result<ModelFiles> select_model(const std::vector<RepoFile>& files,
                                const std::string& quant,
                                const std::string& repo_id) {
  std::map<std::string, Candidate> ggufs = gguf_models(files);
  if (quant.empty()) {
    if (std::optional<ModelFiles> directory = directory_files(files)) return *directory;
    if (ggufs.size() == 1) return gguf_files(ggufs, ggufs.begin()->first, repo_id);
    for (const char* label : kQuantOrder) {
      for (const auto& [stem, c] : ggufs)
        if (c.label == label) return gguf_files(ggufs, label, repo_id);
    }
    if (!ggufs.empty())
      return Error{400, strf("hf:%s: say which, like hf:%s:%s; there is %s", repo_id.c_str(),
                             repo_id.c_str(), ggufs.begin()->second.parts.front()->path.c_str(),
                             listed(ggufs).c_str())};
  }
  if (ggufs.empty())
    return Error{404, strf(quant.empty() ? "hf:%s holds no model that sluice can read: neither "
                                           "GGUF files nor config.json with safetensors"
                                         : "hf:%s has no GGUF files to choose from: leave the "
                                           "quantisation out",
                           repo_id.c_str())};
  return gguf_files(ggufs, quant, repo_id);
}

Result<void> add_shards(std::string_view index_json,
                        const std::vector<RepoFile>& files,
                        ModelFiles& model) {
  Result<json::value> parsed = parse_json(index_json);
  if (!parsed) return Error{400, model.index + ": " + parsed.error().message};
  const json::object* top = parsed->if_object();
  const json::value* map = top ? top->if_contains("weight_map") : nullptr;
  if (!map || !map->is_object()) return Error{400, model.index + ": has no weight_map"};
  std::set<std::string> shards;
  for (const auto& member : map->get_object()) {
    if (const json::string* name = member.value().if_string()) shards.emplace(*name);
  }
  for (const std::string& shard : shards) {
    const RepoFile* f = find_file(files, shard);
    if (!f)
      return Error{404, strf("%s names %s, which the repository does not have", model.index.c_str(),
                             quote(shard).c_str())};
    model.files.push_back(*f);
  }
  return {};
}

}  // namespace sluice
