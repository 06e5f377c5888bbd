#include "tools/bench_serve/result.h"

#include <algorithm>

#include "base/str.h"

namespace sluice {

namespace {

std::string kind_of(const LoadRecord& r) {
  return r.fate == Fate::http_status ? strf("http %d", r.status) : fate_name(r.fate);
}

// A server's own word, shown as it is when it is one.
std::string word(const std::string& text) {
  bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  });
  return plain && text.size() <= 24 ? text : text.empty() ? "none" : quote(text, 24);
}

unsigned long long ull(uint64_t v) { return v; }

void warn_about(const RunResult& run, Summary& s) {
  double late = s.lateness.at(0.99);
  bool open = s.point.concurrency == 0;
  if (open && late > 0.01)
    s.warnings.push_back(
        strf("sends were late (p99 %.1f ms): the generator or its connections are the limit, not "
             "only the server",
             late * 1e3));
  double asked = s.point.rate;
  if (open && asked > 0 && s.sent > 20 && s.send_rate() < 0.95 * asked && !s.point.poisson)
    s.warnings.push_back(strf("asked for %.2f requests/s, sent %.2f", asked, s.send_rate()));
  if (s.client_cpu > 0.85)
    s.warnings.push_back(
        strf("the generator used %.0f %% of a core: it may be the limit", s.client_cpu * 100));
  if (s.lag.at(0.99) > 0.02)
    s.warnings.push_back(
        strf("the generator's own timers were late (p99 %.1f ms): latencies include that",
             s.lag.at(0.99) * 1e3));
  if (s.without_usage > 0)
    s.warnings.push_back(strf("%llu answers came without usage: their tokens are counted by chunks",
                              ull(s.without_usage)));
  if (s.input_differs > 0)
    s.warnings.push_back(
        strf("%llu prompts had another length than asked for (by the server's "
             "usage)",
             ull(s.input_differs)));
  if (s.odd_counts > 0)
    s.warnings.push_back(strf("%llu answers had more chunks with text than tokens in their usage",
                              ull(s.odd_counts)));
  if (run.interrupted) s.warnings.push_back("ended early by Ctrl-C");
}

std::string ms(double seconds) {
  double v = seconds * 1e3;
  return v < 10 ? strf("%.2f", v) : v < 1000 ? strf("%.1f", v) : strf("%.0f", v);
}

std::string at_ms(Percentiles& p, double q) { return p.count() == 0 ? "-" : ms(p.at(q)); }

struct Latency {
  const char* name;
  const char* json;
  Percentiles* values;
};

std::vector<Latency> latencies(Summary& s) {
  std::vector<Latency> out;
  if (s.streamed) {
    out.push_back({"time to first token", "ttft_s", &s.ttft});
    out.push_back({"inter-token latency", "itl_s", &s.itl});
    out.push_back({"time per output token", "tpot_s", &s.tpot});
  }
  out.push_back({"request latency", "e2e_s", &s.e2e});
  out.push_back({"normalised latency", "normalised_latency_s", &s.normalised});
  if (s.refusal.count() > 0) out.push_back({"time to a refusal", "refusal_s", &s.refusal});
  return out;
}

json::object percentiles_json(Percentiles& p) {
  if (p.count() == 0) return {};
  return {{"count", p.count()}, {"mean", p.mean()},  {"p50", p.at(0.5)}, {"p90", p.at(0.9)},
          {"p95", p.at(0.95)},  {"p99", p.at(0.99)}, {"max", p.at(1)}};
}

void append_failures(const Summary& s, std::string& out) {
  for (const auto& [kind, count] : s.failures) {
    out += strf("  %-20s %8llu", kind.c_str(), ull(count));
    auto it = s.first_message.find(kind);
    if (it != s.first_message.end() && !it->second.empty())
      out += strf("   first: %s", it->second.c_str());
    out += "\n";
  }
}

std::string detail(Summary& s) {
  std::string out;
  auto row = [&](const char* name, const std::string& value) {
    out += strf("%-24s %s\n", name, value.c_str());
  };
  std::string ends;
  for (const auto& [reason, count] : s.finishes)
    ends += strf("%s%s %llu", ends.empty() ? "" : ", ", reason.c_str(), ull(count));
  row("load", s.point.label());
  row("requests",
      strf("%llu: %llu answered%s%s%s, %llu failed%s", ull(s.sent), ull(s.ok),
           ends.empty() ? "" : " (", ends.c_str(), ends.empty() ? "" : ")", ull(s.failed),
           s.cancelled ? strf(", %llu cancelled", ull(s.cancelled)).c_str() : ""));
  append_failures(s, out);
  if (s.refused > 0)
    row("refused",
        strf("%llu, %llu of them with Retry-After", ull(s.refused), ull(s.with_retry_after)));
  row("time", strf("%.3f s", s.elapsed));
  row("requests/s", strf("%.2f answered, %.2f sent%s", s.per_second(s.ok), s.send_rate(),
                         s.point.rate > 0 ? strf(" of %.2f asked", s.point.rate).c_str() : ""));
  row("tokens/s",
      strf("%.1f output, %.1f input, %.1f in all", s.per_second(s.output_tokens),
           s.per_second(s.input_tokens), s.per_second(s.input_tokens + s.output_tokens)));
  row("tokens", strf("%llu input (%llu cached), %llu output in %llu chunks", ull(s.input_tokens),
                     ull(s.cached_tokens), ull(s.output_tokens), ull(s.chunks)));
  if (s.has_slo)
    row("goodput", strf("%.2f requests/s within the objectives (%.1f %% of all sent)",
                        s.per_second(s.good), 100 * s.share(s.good)));
  if (s.has_slo)
    row("attainment",
        strf("%.1f %% of requests (DistServe asks for 90 %%: %s)", 100 * s.share(s.good),
             s.share(s.good) >= kAttainmentGoal ? "met" : "missed"));
  if (s.streamed && s.itl.count() > 0)
    row("FastGen's objective",
        strf("met by %.1f / %.1f / %.1f %% at 2 / 4 / 6 tokens/s", 100 * s.share(s.fastgen[0]),
             100 * s.share(s.fastgen[1]), 100 * s.share(s.fastgen[2])));
  if (s.streamed && s.itl.count() > 0)
    row("worst tenth of gaps", strf("%s ms (mean)", ms(s.worst_decile).c_str()));
  row("MFU, speed of light", "not known to a client: `bench throughput` and `bench slo` have them");
  out += strf("\n%-24s %9s %9s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p95", "p99", "max");
  for (const Latency& l : latencies(s)) {
    if (l.values->count() == 0) continue;
    out += strf("%-24s %9s %9s %9s %9s %9s %9s\n", l.name, ms(l.values->mean()).c_str(),
                at_ms(*l.values, 0.5).c_str(), at_ms(*l.values, 0.9).c_str(),
                at_ms(*l.values, 0.95).c_str(), at_ms(*l.values, 0.99).c_str(),
                at_ms(*l.values, 1).c_str());
  }
  out += strf(
      "\n%-24s %.1f %% of a core, %llu connections made, sends late p99 %s ms, timers late "
      "p99 %s ms\n",
      "generator", s.client_cpu * 100, ull(s.connections), at_ms(s.lateness, 0.99).c_str(),
      at_ms(s.lag, 0.99).c_str());
  for (const std::string& w : s.warnings) out += "warning: " + w + "\n";
  return out;
}

}  // namespace

double Summary::send_rate() const {
  if (point.concurrency > 0 || send_window <= 0) return per_second(sent);
  // The interval after the last send belongs to it too: n sends span n - 1 intervals.
  return sent > 1 ? static_cast<double>(sent - 1) / send_window : per_second(sent);
}

Summary summarise(const RunResult& run, const Slo& slo, bool streamed) {
  Summary s;
  s.point = run.point;
  s.itl = run.gaps;
  s.worst_decile = worst_decile_gap(run.gaps.values());
  s.lateness = run.lateness;
  s.lag = run.lag;
  s.elapsed = run.elapsed;
  s.send_window = run.send_window;
  s.client_cpu = run.client_cpu;
  s.connections = run.connections;
  s.stale = run.stale;
  s.odd_counts = run.odd_counts;
  s.streamed = streamed;
  s.interrupted = run.interrupted;
  s.has_slo = slo.any();
  for (const LoadRecord& r : run.records) {
    ++s.sent;
    if (r.fate == Fate::cancelled) ++s.cancelled;
    if (r.failed()) {
      ++s.failed;
      ++s.failures[kind_of(r)];
      s.first_message.emplace(kind_of(r), r.message);
      if (r.fate == Fate::http_status) s.refusal.add(r.e2e());
      if (r.status == 429 || r.status == 503) {
        ++s.refused;
        if (r.retry_after >= 0) ++s.with_retry_after;
      }
    }
    if (!r.ok()) continue;
    ++s.ok;
    ++s.finishes[word(r.finish)];
    s.input_tokens += static_cast<uint64_t>(r.input_tokens);
    s.output_tokens += static_cast<uint64_t>(r.output_tokens);
    s.cached_tokens += static_cast<uint64_t>(r.cached_tokens);
    s.chunks += static_cast<uint64_t>(r.chunks);
    if (!r.has_usage) ++s.without_usage;
    if (r.has_usage && r.input_asked > 0 && r.input_tokens != r.input_asked) ++s.input_differs;
    if (r.good(slo)) ++s.good;
    s.e2e.add(r.e2e());
    if (r.output_tokens > 0) s.normalised.add(r.e2e() / static_cast<double>(r.output_tokens));
    if (!streamed || r.first < 0) continue;
    s.ttft.add(r.ttft());
    for (size_t i = 0; i < std::size(kFastGenRates); ++i)
      s.fastgen[i] += meets_fastgen(r.ttft(), static_cast<int>(r.input_tokens), r.gaps.worst(),
                                    kFastGenRates[i])
                          ? 1
                          : 0;
    if (r.output_tokens > 1) s.tpot.add(r.tpot());
  }
  warn_about(run, s);
  return s;
}

std::string summary_table(std::vector<Summary>& runs) {
  std::string out;
  for (Summary& s : runs) out += detail(s) + "\n";
  if (runs.size() < 2) return out;
  out += strf("%-18s %9s %9s %9s %9s %9s %9s %9s %9s %8s\n", "load", "req/s", "tokens/s",
              "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p50", "E2E p99", "failed");
  for (Summary& s : runs) {
    out += strf("%-18s %9.2f %9.1f %9s %9s %9s %9s %9s %9s %8llu\n", s.point.label().c_str(),
                s.per_second(s.ok), s.per_second(s.output_tokens), at_ms(s.ttft, 0.5).c_str(),
                at_ms(s.ttft, 0.99).c_str(), at_ms(s.itl, 0.5).c_str(), at_ms(s.itl, 0.99).c_str(),
                at_ms(s.e2e, 0.5).c_str(), at_ms(s.e2e, 0.99).c_str(), ull(s.failed));
  }
  return out;
}

json::object summary_json(Summary& s) {
  json::object j;
  j["load"] = s.point.label();
  if (s.point.concurrency > 0) j["concurrency"] = s.point.concurrency;
  if (s.point.rate > 0) {
    j["rate"] = s.point.rate;
    j["arrivals"] = s.point.poisson ? "poisson" : "fixed";
  }
  j["mfu"] = nullptr;  // a client knows neither the model nor the machine
  j["sol_fraction"] = nullptr;
  j["sent"] = s.sent;
  j["answered"] = s.ok;
  j["failed"] = s.failed;
  j["cancelled"] = s.cancelled;
  json::object failures, finishes;
  for (const auto& [kind, count] : s.failures) failures[kind] = count;
  for (const auto& [reason, count] : s.finishes) finishes[reason] = count;
  j["failures"] = std::move(failures);
  j["finish_reasons"] = std::move(finishes);
  j["refused"] = s.refused;
  j["refused_with_retry_after"] = s.with_retry_after;
  j["elapsed_s"] = s.elapsed;
  j["requests_per_s"] = s.per_second(s.ok);
  j["send_rate"] = s.send_rate();
  j["input_tokens"] = s.input_tokens;
  j["output_tokens"] = s.output_tokens;
  j["cached_tokens"] = s.cached_tokens;
  j["chunks"] = s.chunks;
  j["input_tokens_per_s"] = s.per_second(s.input_tokens);
  j["output_tokens_per_s"] = s.per_second(s.output_tokens);
  j["total_tokens_per_s"] = s.per_second(s.input_tokens + s.output_tokens);
  if (s.has_slo) {
    j["good"] = s.good;
    j["goodput_requests_per_s"] = s.per_second(s.good);
    j["attainment"] = s.share(s.good);
  }
  if (s.streamed) {
    json::object fastgen;
    for (size_t i = 0; i < std::size(kFastGenRates); ++i)
      fastgen[strf("%g", kFastGenRates[i])] = s.share(s.fastgen[i]);
    j["fastgen_share_by_tokens_per_s"] = std::move(fastgen);
    j["tbt_worst_decile_s"] = s.worst_decile;
  }
  for (const Latency& l : latencies(s)) j[l.json] = percentiles_json(*l.values);
  j["lateness_s"] = percentiles_json(s.lateness);
  j["generator"] = json::object{{"cpu", s.client_cpu},
                                {"connections", s.connections},
                                {"stale_connections", s.stale},
                                {"timer_lag_s", percentiles_json(s.lag)}};
  j["answers_without_usage"] = s.without_usage;
  j["prompts_of_other_length"] = s.input_differs;
  j["answers_with_more_chunks_than_tokens"] = s.odd_counts;
  j["interrupted"] = s.interrupted;
  json::array warnings;
  for (const std::string& w : s.warnings) warnings.push_back(json::value(w));
  j["warnings"] = std::move(warnings);
  return j;
}

json::object record_json(const LoadRecord& r, size_t run) {
  json::object j{{"run", run},
                 {"index", r.index},
                 {"due_s", r.due},
                 {"begin_s", r.begin},
                 {"end_s", r.end},
                 {"fate", fate_name(r.fate)},
                 {"status", r.status},
                 {"finish_reason", r.finish},
                 {"input_asked", r.input_asked},
                 {"max_tokens", r.max_tokens},
                 {"input_tokens", r.input_tokens},
                 {"cached_tokens", r.cached_tokens},
                 {"output_tokens", r.output_tokens},
                 {"chunks", r.chunks}};
  if (r.sent >= 0) j["sent_s"] = r.sent;
  if (r.first >= 0) {
    j["first_token_s"] = r.first;
    j["last_token_s"] = r.last;
    j["max_gap_s"] = r.max_gap;
  }
  if (r.retry_after >= 0) j["retry_after_s"] = r.retry_after;
  if (!r.message.empty()) j["message"] = r.message;
  return j;
}

}  // namespace sluice
