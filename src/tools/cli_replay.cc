#include "tools/cli_replay.h"

#include "tools/cli_options.h"

namespace sluice {

void add_replay(CLI::App& app, CommandLine& c) {
  ReplayOptions& o = c.replay;
  CLI::App* s = app.add_subcommand("replay", "run a recording of `serve --record` again");
  s->add_option("recording", o.path, "a .slrec file, or a folder of them")->required();
  s->add_flag("--schedule", o.schedule,
              "tell the scheduler what was recorded and compare its plans (the\ndefault)");
  s->add_option(
      "--model", o.engine.model,
      "compute the recorded plans with this model and compare the\nresults, byte for byte "
      "(needs --record-text)");
  s->add_option("-t,--threads", o.engine.threads, "CPU threads of --model (default: one per core)")
      ->check(whole_number(1, 1024));
  o.engine.device.kind = DeviceChoice::Kind::cpu;
  s->add_option_function<std::string>(
       "--device", [&o](const std::string& text) { o.engine.device = parse_device(text).value(); },
       "where --model runs: cpu, cuda or cuda:N; on a GPU with\n--deterministic only")
      ->check(CLI::Validator(
          [](const std::string& text) {
            auto device = parse_device(text);
            if (!device) return device.error().message;
            return device->is_cpu() || device->is_gpu() ? std::string()
                                                        : "a replay runs on cpu, cuda or cuda:N";
          },
          ""))
      ->default_str("cpu");
  s->add_flag("--deterministic", o.engine.deterministic,
              "on a GPU: the recorded server ran with --deterministic");
  add_named(s, "--dtype", o.engine.dtype, kDtypes, "on a GPU: as when it was recorded");
  add_named(s, "--gpu-weights", o.engine.gpu_weights, kGpuWeights, "likewise");
  s->add_option("--format", o.engine.format, "weight format of random: models, likewise")
      ->default_str(kRandomFormat);
  add_named(s, "--kv", o.engine.kv_type, kKvTypes,
            "type of K and V of --model, as when it was recorded");
  add_named(s, "--quantize", o.engine.quantize, kQuantizes, "of --model, likewise");
  s->add_flag("-q,--quiet", o.engine.quiet, "no progress on stderr");
  s->add_option("--what-if", o.what_if,
                "simulate the recorded arrivals under other settings, like\nbudget=256,chunk=64: "
                "budget, chunk, mixed_budget, max_seqs,\nkv_blocks, order, admission");
  s->add_flag("--stall", o.stall,
              "tell the longest stall: which step, whose prompt, and which\n--chunk would have "
              "avoided it");
  s->add_flag("--json", o.json, "the result as one JSON object on stdout");
  s->footer(
      "Each segment begins with the scheduler's state, so any of them can be replayed. Exit code "
      "1:\na plan differs, or a file is damaged.");
  s->callback([&c] { c.action = [&c] { return cmd_replay(c.replay); }; });
}

}  // namespace sluice
