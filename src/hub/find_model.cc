#include "hub/find_model.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/nearest.h"
#include "base/str.h"
#include "hub/hub_cache.h"
#include "load/open.h"

namespace sluice {

namespace fs = std::filesystem;

namespace {

bool exists(const std::string& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

std::vector<std::string> known_names() {
  std::vector<std::string> names = {"smollm2"};
  for (const StoredModel& s : stored_models()) names.push_back(s.name);
  for (const StoredModel& s : hub_cache_models()) names.push_back(s.name);
  return names;
}

// Of a mistyped path: the first folder or file in it that is not there, as one beside it is called.
std::string nearest_path(const std::string& path) {
  fs::path good, rest(path);
  std::error_code ec;
  auto it = rest.begin();
  for (; it != rest.end(); ++it) {
    if (!fs::exists(good / *it, ec)) break;
    good /= *it;
  }
  if (it == rest.end()) return "";
  std::vector<std::string> names;
  fs::directory_iterator entries(good.empty() ? fs::path(".") : good, ec), end;
  for (; !ec && entries != end && names.size() < 10'000; entries.increment(ec)) {
    std::error_code no;
    std::string name = entries->path().filename().string();
    bool last = std::next(it) == rest.end();
    bool fits = entries->is_directory(no) || (last && name.ends_with(".gguf"));
    if (fits && !name.starts_with('.')) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  std::string near = nearest(it->string(), names);
  if (near.empty()) return "";
  fs::path meant = good / near;
  for (++it; it != rest.end(); ++it) meant /= *it;
  if (fs::exists(meant, ec)) return meant.string();
  std::string further = nearest_path(meant.string());  // a slip in two places
  return further.empty() ? "" : further;
}

// ORG/REPO or an address of the hub, as hf: takes it.
std::string as_hub_name(std::string name) {
  for (const char* begin : {"https://", "http://", "huggingface.co/", "hf.co/"}) {
    if (name.starts_with(begin)) name.erase(0, std::string_view(begin).size());
  }
  while (name.ends_with('/')) name.pop_back();
  if (size_t tree = name.find("/tree/"); tree != std::string::npos) name.resize(tree);
  return parse_hub_name(name) ? "hf:" + name : "";
}

Result<std::string> find_hub_model(const HubName& name, const PullOptions& options) {
  if (auto stored = find_stored(name)) {
    mark_used(stored->path);
    return stored->path;
  }
  if (auto there = find_in_hub_cache(name)) return there->path;
  Result<Pulled> pulled = pull_model(name, options);
  if (pulled) {
    if (!pulled->model.read_only) mark_used(pulled->model.path);
    return pulled->model.path;
  }
  std::string here;
  for (const StoredModel& s : stored_models())
    if (s.repo == name.repo_id() && s.complete) here += (here.empty() ? "" : ", ") + s.name;
  Error e = pulled.error();
  if (e.code == 404 && here.empty()) e.message += did_you_mean(name.text());
  if (!here.empty()) e.message += " (here is " + here + ")";
  return e;
}

}  // namespace

std::string did_you_mean(const std::string& name) {
  std::string near;
  if (is_hub_name(name)) {
    std::vector<std::string> names = known_names();
    std::erase(names, name);
    near = nearest(name, names);
  } else {
    // A path's own suggestion goes first: who writes a slash or .gguf means a file.
    bool path = name.find('/') != std::string::npos || name.ends_with(".gguf");
    if (path) near = nearest_path(name);
    if (near.empty()) near = nearest(name, known_names());
    if (near.empty() && !path) near = nearest_path(name);
    if (near.empty()) near = as_hub_name(name);
  }
  return near.empty() ? "" : "; did you mean " + near + "?";
}

Result<std::string> find_model(const std::string& name, const PullOptions& options) {
  if (name == "smollm2") {
    if (exists(default_model_path())) mark_used(default_model_path());
    return name;
  }
  if (name.empty() || name.starts_with("random:")) return name;
  if (is_hub_name(name)) {
    Result<HubName> parsed = parse_hub_name(name);
    if (!parsed) return parsed.error();
    return find_hub_model(*parsed, options);
  }
  if (exists(name)) return name;
  if (name.find('/') == std::string::npos) {
    if (auto stored = find_stored(std::string_view(name))) {
      mark_used(stored->path);
      return stored->path;
    }
  }
  std::string meant = did_you_mean(name);
  return Error{404, strf("no model or file %s%s%s", quote(name, 400).c_str(), meant.c_str(),
                         meant.empty() ? " (sluice list shows the models that are here)" : "")};
}

}  // namespace sluice
