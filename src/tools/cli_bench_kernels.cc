#include "tools/cli_bench_kernels.h"

#include "tools/cli_options.h"

namespace sluice {

void add_bench_kernels_options(CLI::App* app, BenchKernelsOptions& o) {
  const char* group = "What";
  auto list = [&](const char* name, std::vector<std::string>& to, const char* help) {
    return app->add_option(name, to, help)->delimiter(',')->allow_extra_args(false)->group(group);
  };
  add_named(app, "--rows", o.rows, kKernelRows,
            "of the matmul table: for each format the one that models\nrun on this CPU, or all "
            "that it can run")
      ->group(group);
  list("--row", o.names, "only these, like avx2-q8_0 or attention-f16");
  list("--format", o.formats, "only weights of these formats, like q8_0,q4_k");
  list("--shape", o.shapes, "of which models, as in random:SHAPE")->capture_default_str();
  list("--product", o.products,
       "only these: qkv, o, gate_up, down, lm_head, prefill, decode@512,\ndecode@4096");
  app->add_option("--m", o.m,
                  "rows of activations, like 1,8 or 1-33 (which also shows whether\nt(M) falls as "
                  "M grows)")
      ->capture_default_str()
      ->group(group);
  app->add_flag("--quick", o.quick, "a minute: one shape, two products, M = 1, 16, 512, two rounds")
      ->group(group);

  group = "How";
  app->add_option("-t,--threads", o.threads, "compute threads (default: one per core)")
      ->check(whole_number(1, 1024))
      ->group(group);
  app->add_option("--rotate", o.rotate_mb,
                  "megabytes of copies that calls take turns with: more than\nthe caches hold")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str()
      ->group(group);
  app->add_option("--rounds", o.rounds, "of measuring, each with its limits; they tell the noise")
      ->check(whole_number(1, 1000))
      ->capture_default_str()
      ->group(group);
  add_named(app, "--limits", o.limits, kLimitsFrom,
            "measured beside every case (machines that are shared vary by\nthe minute), or kept by "
            "`bench machine`")
      ->group(group);

  group = "Results";
  app->add_option("--json", o.json, "also write a report to this file (- is stdout, for the table)")
      ->group(group);
  app->add_flag(
         "--add", o.add,
         "as one more pass to the report that is there: passes some minutes\napart tell more "
         "of the noise than rounds")
      ->group(group);
  app->add_option("--compare", o.compare,
                  "measure what such a report holds (and the options above leave),\nshow what "
                  "changed, and fail with exit code 1 if rows are slower")
      ->group(group);
  app->add_option(
         "--tolerance", o.tolerance,
         "least change that counts, as a share; where it is more,\ntwice the noise of both "
         "reports, up to a half")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  app->add_flag("-q,--quiet", o.quiet, "no progress on stderr")->group(group);
  app->footer(
      "The limit of a call is the larger of its bytes / read bandwidth and its operations / peak,\n"
      "both measured within the same second; \"of limit\" takes the peak of the instruction that "
      "the\nkernel uses, \"of best\" that of this CPU's fastest for the type.");
}

}  // namespace sluice
