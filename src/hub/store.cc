#include "hub/store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/cache_dir.h"
#include "base/str.h"
#include "hub/manifest.h"
#include "load/open.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

std::string stamp_path(const std::string& path) {
  std::error_code ec;
  fs::path p(path);
  if (fs::is_directory(p, ec)) return (p / ".used").string();
  return (p.parent_path() / ("." + p.filename().string() + ".used")).string();
}

uint64_t size_of(const fs::path& p) {
  std::error_code ec;
  uint64_t n = fs::file_size(p, ec);
  return ec ? 0 : n;
}

uint64_t folder_bytes(const fs::path& folder) {
  uint64_t sum = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code no;
    if (it->is_regular_file(no)) sum += size_of(it->path());
  }
  return sum;
}

// What a download has left so far of a file: FILE.HASH.partial.
uint64_t partial_bytes(const fs::path& file) {
  uint64_t sum = 0;
  std::error_code ec;
  const std::string begin = file.filename().string() + ".";
  for (fs::directory_iterator it(file.parent_path(), ec), end; !ec && it != end; it.increment(ec)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(begin) && name.ends_with(".partial")) sum += size_of(it->path());
  }
  return sum;
}

// Folders of a folder, sorted by name; hidden ones left out.
std::vector<fs::path> subfolders(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->path().filename().string().starts_with('.'))
      out.push_back(it->path());
  }
  std::ranges::sort(out);
  return out;
}

void add_hub_models(const fs::path& commit, std::vector<StoredModel>& out) {
  std::optional<Manifest> m = read_manifest(commit);
  if (!m) return;
  for (StoredModel& s : m->models) {
    s.name = "hf:" + s.repo + (s.quant.empty() ? "" : ":" + s.quant);
    s.path = s.main.empty() ? commit.string() : (commit / s.main).string();
    for (const RepoFile& f : s.files) {
      uint64_t there = size_of(commit / f.path);
      s.complete = s.complete && there == f.size;
      s.bytes += there + partial_bytes(commit / f.path);
      s.total += f.size;
    }
    out.push_back(std::move(s));
  }
}

// "model-00002-of-00003.gguf": shown by its first part.
bool is_later_part(const std::string& name) {
  size_t of = name.rfind("-of-");
  return of != std::string::npos && of >= 6 && name[of - 6] == '-' &&
         name.substr(of - 5, 5) != "00001" && name.size() == of + 4 + 5 + 5;
}

void add_loose_models(const fs::path& folder, std::vector<StoredModel>& out) {
  const fs::path standard = default_model_path();
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (name.starts_with('.') || name == "hf") continue;
    StoredModel s;
    s.path = it->path().string();
    if (it->is_directory(ignored) && fs::exists(it->path() / "config.json", ignored)) {
      s.name = name;
      s.bytes = folder_bytes(it->path());
    } else if (name.ends_with(".gguf") && it->is_regular_file(ignored) && !is_later_part(name)) {
      s.name = it->path() == standard ? "smollm2" : name.substr(0, name.size() - 5);
      s.bytes = size_of(it->path());
    } else {
      continue;
    }
    s.total = s.bytes;
    out.push_back(std::move(s));
  }
}

bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           auto low = [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; };
           return low(x) == low(y);
         });
}

fs::file_time_type changed(const StoredModel& s) {
  std::error_code ec;
  auto t = fs::last_write_time(commit_folder(s.repo, s.commit) + "/" + kManifestName, ec);
  return ec ? fs::file_time_type::min() : t;
}

}  // namespace

std::string models_folder() { return fs::path(default_model_path()).parent_path().string(); }

std::string commit_folder(const std::string& repo, const std::string& commit) {
  return models_folder() + "/hf/" + repo + "/" + commit;
}

std::vector<StoredModel> stored_models() {
  std::vector<StoredModel> out;
  const fs::path folder = models_folder();
  add_loose_models(folder, out);
  for (const fs::path& org : subfolders(folder / "hf"))
    for (const fs::path& repo : subfolders(org))
      for (const fs::path& commit : subfolders(repo)) add_hub_models(commit, out);
  std::ranges::stable_sort(out, {}, [](const StoredModel& s) { return s.name; });
  return out;
}

std::optional<StoredModel> find_stored(const HubName& name) {
  std::optional<StoredModel> best;
  for (StoredModel& s : stored_models()) {
    if (!s.complete || !same_word(s.repo, name.repo_id())) continue;
    bool meant =
        name.quant.empty()
            ? s.chosen || s.quant.empty()
            : !s.main.empty() && (same_word(s.quant, name.quant) || same_word(s.main, name.quant) ||
                                  same_word(fs::path(s.main).filename().string(), name.quant));
    if (meant && (!best || changed(s) > changed(*best))) best = std::move(s);
  }
  return best;
}

std::optional<StoredModel> find_stored(std::string_view name) {
  std::error_code ec;
  for (StoredModel& s : stored_models()) {
    const fs::path path(s.path);
    bool meant = s.name == name || (s.repo.empty() && path.filename().string() == name) ||
                 (name.find('/') != std::string_view::npos && fs::equivalent(path, name, ec));
    if (meant) return std::move(s);
  }
  return std::nullopt;
}

Result<void> write_manifest(const std::string& repo,
                            const std::string& commit,
                            const ModelFiles& model,
                            bool chosen,
                            bool complete) {
  const fs::path folder = commit_folder(repo, commit);
  Manifest m = read_manifest(folder).value_or(Manifest{});
  m.repo = repo;
  m.commit = commit;
  auto same = [&](const StoredModel& s) { return s.quant == model.quant && s.main == model.main; };
  auto it = std::ranges::find_if(m.models, same);
  if (it == m.models.end()) it = m.models.insert(m.models.end(), StoredModel());
  it->quant = model.quant;
  it->main = model.main;
  it->files = model.files;
  it->chosen = it->chosen || chosen;
  it->complete = complete;
  return store_manifest(folder, m);
}

Result<void> remove_stored(const StoredModel& model) {
  std::error_code ec;
  const fs::path root = models_folder();
  if (model.read_only || !fs::path(model.path)
                              .lexically_normal()
                              .string()
                              .starts_with(root.lexically_normal().string() + "/"))
    return Error{400, strf("%s lies outside of sluice's cache folder %s: not removed",
                           quote(model.path, 400).c_str(), quote(root.string(), 400).c_str())};
  fs::remove(stamp_path(model.path), ec);
  if (model.repo.empty()) {
    const fs::path path(model.path);
    fs::remove(path.parent_path() / ("." + path.filename().string() + ".checked"), ec);
    fs::remove_all(path, ec);
    if (ec)
      return Error{
          500, strf("cannot remove %s: %s", quote(model.path, 400).c_str(), ec.message().c_str())};
    return {};
  }
  const fs::path commit = commit_folder(model.repo, model.commit);
  Manifest m = read_manifest(commit).value_or(Manifest{model.repo, model.commit, {}});
  std::erase_if(m.models, [&](const StoredModel& s) {
    return s.quant == model.quant && s.main == model.main;
  });
  if (!m.models.empty()) {
    std::set<std::string> needed;
    for (const StoredModel& s : m.models)
      for (const RepoFile& f : s.files) needed.insert(f.path);
    if (auto ok = store_manifest(commit, m); !ok) return ok;
    for (const RepoFile& f : model.files) {
      if (needed.contains(f.path)) continue;
      fs::remove(commit / f.path, ec);
      if (ec)
        return Error{500,
                     strf("cannot remove %s: %s", quote((commit / f.path).string(), 400).c_str(),
                          ec.message().c_str())};
      for (fs::directory_iterator it((commit / f.path).parent_path(), ec), end; !ec && it != end;
           it.increment(ec)) {
        std::string name = it->path().filename().string();
        std::error_code ignored;
        if (name.starts_with(fs::path(f.path).filename().string() + ".") &&
            name.ends_with(".partial"))
          fs::remove(it->path(), ignored);
      }
    }
    return {};
  }
  fs::remove_all(commit, ec);
  if (ec)
    return Error{500, strf("cannot remove %s: %s", quote(commit.string(), 400).c_str(),
                           ec.message().c_str())};
  const fs::path repo = commit.parent_path();
  if (subfolders(repo).empty()) {
    fs::remove(repo / ".lock", ec);
    fs::remove(repo, ec);                // fails unless empty, as it should
    fs::remove(repo.parent_path(), ec);  // the organisation's
  }
  return {};
}

std::optional<int64_t> last_used(const std::string& path) {
  struct stat st = {};
  if (stat(stamp_path(path).c_str(), &st) != 0) return std::nullopt;
  return static_cast<int64_t>(st.st_mtime);
}

void mark_used(const std::string& path) {  // a folder that cannot be written to is no fault
  int fd = ::open(stamp_path(path).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return;
  static_cast<void>(futimens(fd, nullptr));
  ::close(fd);
}

}  // namespace sluice
