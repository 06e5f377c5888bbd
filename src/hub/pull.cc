#include "hub/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "base/cache_dir.h"
#include "base/str.h"
#include "hub/download.h"
#include "hub/hub_cache.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

// Keeps two processes from writing the same files. Released when closed, also by a crash.
class PullLock {
 public:
  explicit PullLock(int fd) : fd_(fd) {}
  PullLock(PullLock&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  PullLock& operator=(PullLock&&) = delete;
  ~PullLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  int fd_;
};

Result<PullLock> lock_folder(const fs::path& folder, const std::string& what, const Say& say) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  const std::string path = (folder / ".lock").string();
  int fd = ec ? -1 : ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    return Error{500, strf("cannot write to %s: %s; set SLUICE_CACHE to a folder of yours",
                           quote(folder.string(), 400).c_str(),
                           ec ? ec.message().c_str() : std::strerror(errno))};
  PullLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (say) say("waiting: another process is getting " + what);
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  return lock;
}

Result<void> check_space(const fs::path& folder, uint64_t missing, const std::string& what) {
  struct statvfs st = {};
  if (missing == 0 || statvfs(folder.c_str(), &st) != 0) return {};
  uint64_t space = static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
  if (missing <= space) return {};
  return Error{500, strf("%s: %s are still to be fetched and %s is free at %s: make room, or set "
                         "SLUICE_CACHE to a folder on a larger disk",
                         what.c_str(), human_bytes(missing).c_str(), human_bytes(space).c_str(),
                         quote(folder.string(), 400).c_str())};
}

uint64_t size_at(const fs::path& path) {
  std::error_code ec;
  uint64_t n = fs::file_size(path, ec);
  return ec ? 0 : n;
}

bool same_content(const RepoFile& a, const RepoFile& b) {
  return a.size == b.size && a.sha256 == b.sha256 && a.git_sha1 == b.git_sha1 &&
         !(a.sha256.empty() && a.git_sha1.empty());
}

// One pull of one model, with the repository locked.
class Pull {
 public:
  Pull(const HubName& name, const PullOptions& o, HubClient& hub, Repository repo)
      : name_(name),
        o_(o),
        hub_(hub),
        repo_(std::move(repo)),
        folder_(commit_folder(repo_.id, repo_.commit)),
        what_(name.text()) {}

  Result<Pulled> run();

 private:
  Result<void> read_index();
  void take_from_older();
  Result<void> fetch(const std::vector<RepoFile>& files, bool is_index = false);
  void drop_older();

  const HubName& name_;
  const PullOptions& o_;
  HubClient& hub_;
  Repository repo_;
  fs::path folder_;
  std::string what_;
  ModelFiles model_;
};

// Files that are not there yet, by what the manifest says was checked.
Result<void> Pull::fetch(const std::vector<RepoFile>& files, bool is_index) {
  std::vector<Download> missing;
  uint64_t bytes = 0;
  for (const RepoFile& f : files) {
    const fs::path path = folder_ / f.path;
    std::error_code ec;
    if (fs::exists(path, ec) && size_at(path) == f.size) continue;
    fs::create_directories(path.parent_path(), ec);
    if (ec)
      return Error{500, strf("cannot make %s: %s", quote(path.parent_path().string(), 400).c_str(),
                             ec.message().c_str())};
    bytes += f.size - std::min(f.size, size_at(partial_path(f, path.string())));
    missing.push_back({f, hub_.file_request(repo_, f.path), path.string()});
  }
  if (missing.empty()) return {};
  if (o_.say && !is_index)
    o_.say(strf("getting %s, revision %.12s: %zu file%s, %s, to %s", what_.c_str(),
                repo_.commit.c_str(), missing.size(), missing.size() == 1 ? "" : "s",
                human_bytes(bytes).c_str(), folder_.c_str()));
  if (auto ok = check_space(folder_, bytes, what_); !ok) return ok;
  DownloadOptions o;
  o.what = what_;
  o.settings = hub_.settings();
  o.say = o_.say;
  o.progress = o_.progress;
  return download_all(missing, o);
}

// A directory's index says which shards it has.
Result<void> Pull::read_index() {
  if (model_.index.empty()) return {};
  std::vector<RepoFile> index;
  for (const RepoFile& f : model_.files)
    if (f.path == model_.index) index.push_back(f);
  if (auto ok = fetch(index, true); !ok) return ok;
  std::ifstream in(folder_ / model_.index, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (auto ok = add_shards(text.str(), repo_.files, model_); !ok)
    return Error{ok.error().code, what_ + ": " + ok.error().message};
  return {};
}

// What an older revision has already, checked then, is linked instead of fetched.
void Pull::take_from_older() {
  for (const StoredModel& s : stored_models()) {
    if (s.repo != repo_.id || s.commit == repo_.commit || !s.complete) continue;
    for (const RepoFile& f : model_.files) {
      for (const RepoFile& old : s.files) {
        if (old.path != f.path || !same_content(old, f)) continue;
        std::error_code ec;
        fs::create_directories((folder_ / f.path).parent_path(), ec);
        fs::create_hard_link(fs::path(commit_folder(s.repo, s.commit)) / old.path, folder_ / f.path,
                             ec);  // else it is fetched
      }
    }
  }
}

void Pull::drop_older() {
  for (const StoredModel& s : stored_models()) {
    bool older = s.repo == repo_.id && s.commit != repo_.commit && s.quant == model_.quant &&
                 s.main == model_.main;
    if (older) static_cast<void>(remove_stored(s));
  }
}

Result<Pulled> Pull::run() {
  Result<ModelFiles> model = select_model(repo_.files, name_.quant, repo_.id);
  if (!model) return model.error();
  model_ = std::move(*model);
  HubName exact = name_;
  exact.quant = model_.main.empty() ? "" : model_.main;
  if (auto found = find_in_hub_cache(exact, repo_.commit); found && found->main == model_.main)
    return Pulled{*found, true};
  Result<PullLock> lock = lock_folder(folder_.parent_path(), what_, o_.say);
  if (!lock) return lock.error();
  const bool chosen = name_.quant.empty();
  auto stored = [&]() -> std::optional<StoredModel> {
    for (StoredModel& s : stored_models()) {
      if (s.repo == repo_.id && s.commit == repo_.commit && s.main == model_.main && s.complete)
        return std::move(s);
    }
    return std::nullopt;
  };
  if (auto there = stored()) {
    model_.files = there->files;
    if (auto ok = write_manifest(repo_.id, repo_.commit, model_, chosen, true); !ok)
      return ok.error();
    return Pulled{*there, true};
  }
  std::error_code ec;
  fs::create_directories(folder_, ec);
  if (auto ok = write_manifest(repo_.id, repo_.commit, model_, chosen, false); !ok)
    return ok.error();
  if (auto ok = read_index(); !ok) return ok.error();
  if (auto ok = write_manifest(repo_.id, repo_.commit, model_, chosen, false); !ok)
    return ok.error();
  take_from_older();
  if (auto ok = fetch(model_.files); !ok) return ok.error();
  if (auto ok = write_manifest(repo_.id, repo_.commit, model_, chosen, true); !ok)
    return ok.error();
  drop_older();
  auto there = stored();
  if (!there) return Error{500, what_ + ": its files changed while they were fetched; pull again"};
  return Pulled{*there, false};
}

}  // namespace

Result<Pulled> pull_model(const HubName& name, const PullOptions& options) {
  Result<HubSettings> settings = hub_settings();
  if (!settings) return settings.error();
  if (settings->offline)
    return Error{404, strf("%s is not here, and HF_HUB_OFFLINE is set: unset it, or pull where "
                           "there is a network",
                           name.text().c_str())};
  const char* own = std::getenv("SLUICE_CACHE");
  if (!(own && *own) && user_cache_dir().empty())
    return Error{400, "there is no HOME to keep models in: set SLUICE_CACHE to a folder"};
  HubClient hub(*settings, options.say);
  Result<Repository> repo = hub.repository(name);
  if (!repo) return repo.error();
  return Pull(name, options, hub, std::move(*repo)).run();
}

}  // namespace sluice
