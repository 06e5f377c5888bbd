// sluice batch: a file of requests through one or more servers, a file of results.
#include <chrono>
#include <cstdio>

#include "base/str.h"
#include "tools/batch/batch_run.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/request_headers.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr int kExitInterrupted = 130;

// requests.jsonl -> requests.results.jsonl
std::string results_path(const BatchOptions& o) {
  if (!o.out.empty()) return o.out;
  std::string stem = o.file;
  if (stem.ends_with(".jsonl")) stem.resize(stem.size() - 6);
  return stem + ".results.jsonl";
}

Result<BatchRunOptions> run_options(const BatchOptions& o) {
  BatchRunOptions run;
  Result<HttpHeaders> headers = request_headers(o.headers, o.api_key_env);
  if (!headers) return headers.error();
  run.headers = std::move(*headers);
  run.model = o.model;
  run.concurrency = o.concurrency;
  run.tries = o.tries;
  run.patience = o.patience;
  const std::chrono::milliseconds timeout(static_cast<int64_t>(o.timeout * 1e3));
  for (const std::string& text : o.urls) {
    Result<HttpUrl> url = parse_http_url(text);
    if (!url) return url.error();
    if (url->path.ends_with("/v1")) url->path.resize(url->path.size() - 3);
    HttpClient::Options to;
    to.url = *url;
    to.request = to.stall = timeout;  // an answer comes in one piece, at its end
    if (url->tls) {
      Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({o.ca_file, false});
      if (!tls) return tls.error();
      to.tls = std::move(*tls);
    }
    run.servers.push_back(std::move(to));
  }
  return run;
}

// "120 of 1000 done, 64 in flight, 12.3/s, 71 s left"
std::string progress_line(
    const BatchProgress& p, size_t total, size_t before, double seconds, size_t servers) {
  std::string line = strf("%zu of %zu done, %zu in flight", p.done, total, p.in_flight);
  if (p.servers < servers) line += strf(", %zu of %zu servers answer", p.servers, servers);
  if (p.done == before || seconds <= 0) return line;
  const double rate = static_cast<double>(p.done - before) / seconds;
  return line + strf(", %.1f/s, %.0f s left", rate, static_cast<double>(total - p.done) / rate);
}

int say_end(const BatchOptions& o,
            const BatchEnd& end,
            const BatchOutput& output,
            size_t total,
            const std::string& path,
            double seconds) {
  const size_t done = output.num_done(), refused = output.num_refused() - end.failed;
  if (o.json) {
    std::printf("%s\n", plain_json(json::object{{"requests", total},
                                                {"done", done},
                                                {"refused", refused},
                                                {"failed", end.failed},
                                                {"seconds", seconds},
                                                {"results", path}})
                            .c_str());
  } else {
    std::printf("%zu of %zu requests done%s%s, results in %s\n", done, total,
                refused ? strf(", %zu refused by the server", refused).c_str() : "",
                end.failed ? strf(", %zu without an answer", end.failed).c_str() : "",
                quote(path, 400).c_str());
  }
  if (end.interrupted || !end.error.empty()) {
    std::fprintf(stderr, "sluice: stopped%s%s; the same command goes on where it stopped\n",
                 end.error.empty() ? "" : ": ", end.error.c_str());
    return end.interrupted ? kExitInterrupted : kExitFailure;
  }
  if (end.failed > 0)
    std::fprintf(stderr, "sluice: the same command sends the %zu again\n", end.failed);
  return end.failed > 0 ? kExitFailure : kExitOk;
}

}  // namespace

int cmd_batch(const BatchOptions& o) {
  raise_descriptor_limit();
  Result<BatchRunOptions> options = run_options(o);
  if (!options) return report(options.error());
  Result<BatchInput> input = BatchInput::open(o.file);
  if (!input) return report(input.error());
  const std::string path = results_path(o);
  Result<BatchOutput> output = BatchOutput::open(path, *input);
  if (!output) return report(output.error());
  const size_t total = input->size(), before = output->num_done();
  if (before > 0 && !o.quiet)
    std::fprintf(stderr, "sluice: %zu of %zu are done already\n", before, total);
  StatusLine status(!o.quiet);
  CatchInterrupt interrupt;
  const auto begin = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Result<BatchEnd> end = run_batch(*input, *output, *options, [&](const BatchProgress& p) {
    status.show(progress_line(p, total, before, seconds(), options->servers.size()));
    return !interrupt.seen();
  });
  status.clear();
  if (!end) return report(end.error());
  return say_end(o, *end, *output, total, path, seconds());
}

}  // namespace sluice
