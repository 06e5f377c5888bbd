#include "tools/cli_models.h"

namespace sluice {

void add_list(CLI::App& app, CommandLine& c) {
  CLI::App* l = app.add_subcommand("list", "the models that are here");
  l->add_flag("--json", c.list.json, "as a JSON array");
  l->footer(
      "Models are in $SLUICE_CACHE/models (~/.cache/sluice/models): what `pull` has fetched, and\n"
      ".gguf files and Hugging Face directories put there by hand. Those that Hugging Face's own\n"
      "tools have fetched can be used as well, and are listed too.");
  l->callback([&c] { c.action = [&c] { return cmd_list(c.list); }; });
}

void add_pull(CLI::App& app, CommandLine& c) {
  CLI::App* p = app.add_subcommand("pull", "get a model, or its newest revision");
  p->add_option("model", c.pull.model, "hf:ORG/REPO[:QUANT] or smollm2")->required();
  p->add_flag("--json", c.pull.json, "name, path, revision and size as one JSON object on stdout");
  p->add_flag("-q,--quiet", c.pull.quiet, "nothing on stderr but errors");
  p->footer(
      "QUANT names a GGUF file of the repository, like Q4_K_M or the file's own name. Without it:\n"
      "safetensors where the repository has them, else Q4_K_M, else the nearest to it.\n"
      "Files are checked by their hash. What was cut off goes on where it stopped when pulled "
      "again.\n"
      "Environment: HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE, https_proxy, SLUICE_CACHE.");
  p->callback([&c] { c.action = [&c] { return cmd_pull(c.pull); }; });
}

void add_rm(CLI::App& app, CommandLine& c) {
  CLI::App* r = app.add_subcommand("rm", "delete models from the cache folder");
  r->add_option("models", c.rm.models, "names as `list` shows them")->required();
  r->add_flag("-y,--yes", c.rm.yes, "do not ask");
  r->callback([&c] { c.action = [&c] { return cmd_rm(c.rm); }; });
}

}  // namespace sluice
