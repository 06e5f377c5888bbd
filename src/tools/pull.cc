// sluice pull: a model from the hub into the cache folder; its path on stdout.
#include <cstdio>

#include "base/json.h"
#include "base/str.h"
#include "load/default_model.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/models.h"

namespace sluice {

namespace {

void print_pulled(const PullCommandOptions& o, const StoredModel& m, bool was_there) {
  if (!o.json) {
    std::printf("%s\n", m.path.c_str());
    return;
  }
  json::object j{{"name", m.name}, {"path", m.path}, {"bytes", m.bytes}, {"fetched", !was_there}};
  if (!m.commit.empty()) j["revision"] = m.commit;
  std::printf("%s\n", plain_json(j).c_str());
}

}  // namespace

int cmd_pull(const PullCommandOptions& o) {
  if (o.model == "smollm2") {
    bool was_there = find_stored(std::string_view("smollm2")).has_value();
    if (Result<std::string> path = fetch_default_model(); !path) return report(path.error());
    print_pulled(o, *find_stored(std::string_view("smollm2")), was_there);
    return kExitOk;
  }
  if (!is_hub_name(o.model))
    return report({400, strf("pull %s: write smollm2 or hf:ORG/REPO[:QUANT]%s",
                             quote(o.model, 400).c_str(), did_you_mean(o.model).c_str())});
  Result<HubName> name = parse_hub_name(o.model);
  if (!name) return report(name.error());
  PullProgress progress(o.quiet);
  Result<Pulled> pulled = pull_model(*name, progress.options());
  if (!pulled) return report(pulled.error());
  const StoredModel& m = pulled->model;
  if (!o.quiet)
    std::fprintf(stderr, "%s %s, %s, revision %.12s\n", m.name.c_str(),
                 pulled->was_there ? "is here already" : "is here", human_bytes(m.bytes).c_str(),
                 m.commit.c_str());
  print_pulled(o, m, pulled->was_there);
  return kExitOk;
}

}  // namespace sluice
