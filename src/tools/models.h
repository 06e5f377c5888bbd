// The commands list, pull and rm, which manage the models in the cache folder. Their options, as
// plain data that cli_models.cc fills.
#pragma once

#include <string>
#include <vector>

namespace sluice {

struct ListOptions {
  bool json = false;
};

struct PullCommandOptions {
  std::string model;
  bool json = false, quiet = false;
};

struct RmOptions {
  std::vector<std::string> models;
  bool yes = false;
};

int cmd_list(const ListOptions& options);
int cmd_pull(const PullCommandOptions& options);
int cmd_rm(const RmOptions& options);

}  // namespace sluice
