// sluice rm: deletes models from the cache folder, and nothing else.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <vector>

#include "base/nearest.h"
#include "base/str.h"
#include "hub/hub_cache.h"
#include "hub/store.h"
#include "tools/commands.h"
#include "tools/models.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

Error not_here(const std::string& name) {
  const std::string folder = quote(models_folder(), 400);
  Result<HubName> hub = parse_hub_name(name);
  if (is_hub_name(name) && hub && find_in_hub_cache(*hub))
    return {400, strf("%s is in the cache folder of Hugging Face's own tools, which sluice only "
                      "reads: `hf cache` removes it",
                      name.c_str())};
  std::error_code ec;
  if (std::filesystem::exists(name, ec))
    return {400, strf("%s is not in sluice's cache folder %s: not removed",
                      quote(name, 400).c_str(), folder.c_str())};
  std::vector<std::string> names;
  for (const StoredModel& m : stored_models()) names.push_back(m.name);
  std::string near = nearest(name, names);
  return {404,
          strf("no model %s in %s%s", quote(name, 400).c_str(), folder.c_str(),
               near.empty() ? " (see sluice list)" : ("; did you mean " + near + "?").c_str())};
}

// hf:ORG/REPO without a quantisation means the repository's only model.
Result<StoredModel> find_one(const std::string& name) {
  if (auto model = find_stored(std::string_view(name))) return *model;
  std::vector<StoredModel> of_repo;
  for (StoredModel& m : stored_models())
    if (!m.repo.empty() && name == "hf:" + m.repo) of_repo.push_back(std::move(m));
  if (of_repo.size() == 1) return of_repo[0];
  if (of_repo.empty()) return not_here(name);
  std::string list;
  for (const StoredModel& m : of_repo) list += (list.empty() ? "" : ", ") + m.name;
  return Error{400, strf("%s: say which: %s", name.c_str(), list.c_str())};
}

bool confirmed(const std::vector<StoredModel>& models) {
  for (const StoredModel& m : models)
    std::fprintf(stderr, "%s, %s, %s\n", m.name.c_str(), human_bytes(m.bytes).c_str(),
                 m.path.c_str());
  std::fprintf(stderr, "Remove %s? [y/N] ", models.size() == 1 ? "it" : "them");
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

int cmd_rm(const RmOptions& o) {
  std::vector<StoredModel> models;
  for (const std::string& name : o.models) {
    Result<StoredModel> m = find_one(name);
    if (!m) return report(m.error());
    models.push_back(std::move(*m));
  }
  if (!o.yes) {
    if (!stdin_is_terminal())
      return report({400, "rm asks before it removes, and stdin is no terminal: say --yes"});
    if (!confirmed(models)) {
      std::fprintf(stderr, "nothing removed\n");
      return kExitFailure;
    }
  }
  for (const StoredModel& m : models) {
    if (auto ok = remove_stored(m); !ok) return report(ok.error());
    std::fprintf(stderr, "removed %s, %s\n", m.name.c_str(), human_bytes(m.bytes).c_str());
  }
  return kExitOk;
}

}  // namespace sluice
