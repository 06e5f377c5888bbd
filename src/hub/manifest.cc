#include "hub/manifest.h"

#include <fstream>
#include <sstream>

#include "base/json.h"
#include "base/str.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::string text_of(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  return v && v->is_string() ? std::string(v->get_string()) : std::string();
}

bool flag_of(const json::object& o, const char* key) {
  const json::value* v = o.if_contains(key);
  return v && v->is_bool() && v->get_bool();
}

}  // namespace

std::optional<Manifest> read_manifest(const fs::path& folder) {
  std::ifstream in(folder / kManifestName, std::ios::binary);
  std::stringstream text;
  if (!in || !(text << in.rdbuf())) return std::nullopt;
  Result<json::value> parsed = parse_json(text.str());
  if (!parsed || !parsed->is_object()) return std::nullopt;
  const json::object& top = parsed->get_object();
  Manifest m{text_of(top, "repo"), text_of(top, "commit"), {}};
  const json::value* models = top.if_contains("models");
  if (!looks_like_repo_id(m.repo) || !models || !models->is_array()) return std::nullopt;
  for (const json::value& v : models->get_array()) {
    const json::object* o = v.if_object();
    const json::value* files = o ? o->if_contains("files") : nullptr;
    if (!files || !files->is_array()) return std::nullopt;
    StoredModel s;
    s.repo = m.repo;
    s.commit = m.commit;
    s.quant = text_of(*o, "quant");
    s.main = text_of(*o, "main");
    s.chosen = flag_of(*o, "chosen");
    s.complete = flag_of(*o, "complete");
    for (const json::value& f : files->get_array()) {
      const json::object* file = f.if_object();
      if (!file || !is_safe_path(text_of(*file, "path"))) return std::nullopt;
      const json::value* size = file->if_contains("size");
      s.files.push_back({text_of(*file, "path"),
                         size && size->is_int64() ? static_cast<uint64_t>(size->get_int64()) : 0,
                         text_of(*file, "sha256"), text_of(*file, "git_sha1")});
    }
    if (!s.main.empty() && !is_safe_path(s.main)) return std::nullopt;
    m.models.push_back(std::move(s));
  }
  return m;
}

Result<void> store_manifest(const fs::path& folder, const Manifest& m) {
  json::array models;
  for (const StoredModel& s : m.models) {
    json::array files;
    for (const RepoFile& f : s.files) {
      json::object o{{"path", f.path}, {"size", f.size}};
      if (!f.sha256.empty()) o["sha256"] = f.sha256;
      if (!f.git_sha1.empty()) o["git_sha1"] = f.git_sha1;
      files.push_back(std::move(o));
    }
    models.push_back(json::object{{"quant", s.quant},
                                  {"main", s.main},
                                  {"chosen", s.chosen},
                                  {"complete", s.complete},
                                  {"files", std::move(files)}});
  }
  json::object top{{"repo", m.repo}, {"commit", m.commit}, {"models", std::move(models)}};
  fs::path path = folder / kManifestName, temp = folder / (std::string(kManifestName) + ".new");
  {
    std::ofstream out(temp, std::ios::binary | std::ios::trunc);
    out << json::serialize(top) << "\n";
    if (!out.flush()) return Error{500, strf("cannot write %s", quote(temp.string(), 400).c_str())};
  }
  std::error_code ec;
  fs::rename(temp, path, ec);
  if (ec)
    return Error{
        500, strf("cannot write %s: %s", quote(path.string(), 400).c_str(), ec.message().c_str())};
  return {};
}

}  // namespace sluice
