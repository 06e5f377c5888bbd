#include "hub/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "hub/settings.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::string read_small(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  return text.str();
}

// Files of a snapshot that are really there: a link to a blob that is gone is none.
std::vector<RepoFile> snapshot_files(const fs::path& snapshot) {
  std::vector<RepoFile> files;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(snapshot, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code no;
    if (!it->is_regular_file(no)) continue;  // follows links
    std::string path = it->path().lexically_relative(snapshot).string();
    if (is_safe_path(path)) files.push_back({path, it->file_size(no), "", ""});
  }
  std::ranges::sort(files, {}, &RepoFile::path);
  return files;
}

std::optional<StoredModel> model_in(const fs::path& snapshot,
                                    const std::vector<RepoFile>& files,
                                    const std::string& repo,
                                    const std::string& quant) {
  Result<ModelFiles> model = select_model(files, quant, repo);
  if (!model) return std::nullopt;
  if (!model->index.empty() && !add_shards(read_small(snapshot / model->index), files, *model))
    return std::nullopt;
  StoredModel s;
  s.name = "hf:" + repo + (model->quant.empty() ? "" : ":" + model->quant);
  s.path = (model->main.empty() ? snapshot : snapshot / model->main).string();
  s.read_only = true;
  s.repo = repo;
  s.commit = snapshot.filename().string();
  s.quant = model->quant;
  s.main = model->main;
  s.files = model->files;
  for (const RepoFile& f : s.files) s.bytes += f.size;
  s.total = s.bytes;
  return s;
}

// Of a repository's folder: what refs/main names first, then the others, the newest first.
std::vector<fs::path> snapshots(const fs::path& repo) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::string main = read_small(repo / "refs/main");
  main.erase(main.find_last_not_of(" \r\n") + 1);
  std::error_code ec;
  for (fs::directory_iterator it(repo / "snapshots", ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code no;
    if (!it->is_directory(no)) continue;
    bool is_main = it->path().filename().string() == main;
    found.emplace_back(is_main ? fs::file_time_type::max() : it->last_write_time(no), it->path());
  }
  std::ranges::sort(found, std::greater());
  std::vector<fs::path> out;
  for (auto& [time, path] : found) out.push_back(std::move(path));
  return out;
}

}  // namespace

std::optional<StoredModel> find_in_hub_cache(const HubName& name, const std::string& commit) {
  if (hub_cache_folder().empty()) return std::nullopt;
  const fs::path repo = fs::path(hub_cache_folder()) / ("models--" + name.org + "--" + name.repo);
  for (const fs::path& snapshot : snapshots(repo)) {
    if (!commit.empty() && snapshot.filename().string() != commit) continue;
    if (auto model = model_in(snapshot, snapshot_files(snapshot), name.repo_id(), name.quant))
      return model;
  }
  return std::nullopt;
}

std::vector<StoredModel> hub_cache_models() {
  std::vector<StoredModel> out;
  std::set<std::string> seen;
  std::error_code ec;
  if (hub_cache_folder().empty()) return out;
  for (fs::directory_iterator it(hub_cache_folder(), ec), end; !ec && it != end; it.increment(ec)) {
    std::string folder = it->path().filename().string();
    if (!folder.starts_with("models--")) continue;
    std::string repo = folder.substr(8);
    if (size_t dash = repo.find("--"); dash != std::string::npos) repo.replace(dash, 2, "/");
    if (!looks_like_repo_id(repo)) continue;
    for (const fs::path& snapshot : snapshots(it->path())) {
      const std::vector<RepoFile> files = snapshot_files(snapshot);
      std::set<std::string> quants = {""};
      for (const RepoFile& f : files)
        if (std::string label = quant_label(f.path); !label.empty()) quants.insert(label);
      for (const std::string& quant : quants) {
        auto model = model_in(snapshot, files, repo, quant);
        if (model && seen.insert(model->name).second) out.push_back(std::move(*model));
      }
    }
  }
  std::ranges::sort(out, {}, &StoredModel::name);
  return out;
}

}  // namespace sluice
