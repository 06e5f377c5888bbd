// sluice constrain: a schema, regex or grammar for a model's vocabulary; bench constraints.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "base/str.h"
#include "tools/commands.h"
#include "tools/constrain_run.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

using constrain::Constraint;
using constrain::ConstraintSource;

struct ConstraintJob {
  ConstraintSource source;
  std::vector<std::string> texts, hints;
  int samples = 0;
  uint64_t seed = 1;
};

// {"supported", "error"?, "compile_ms", "texts": [bool], "samples": [text], "unfinished",
// "failures"}
json::object run_job(const ConstraintJob& job, const ConstraintModel& model) {
  json::object out;
  double start = thread_seconds();
  auto constraint = Constraint::compile(job.source, model.trie);
  out["compile_ms"] = 1e3 * (thread_seconds() - start);
  out["supported"] = constraint.has_value();
  if (!constraint) {
    out["error"] = constraint.error().message;
    return out;
  }
  json::array judged, samples, failures;
  for (const std::string& text : job.texts) judged.push_back(judge_text(*constraint, text));
  int unfinished = 0;
  for (int i = 0; i < job.samples; ++i) {
    auto text = random_text(*constraint, job.seed * 1'000'003 + static_cast<uint64_t>(i), 20'000,
                            job.hints, nullptr);
    if (!text) {
      failures.push_back(json::string(text.error().message));
    } else if (*text) {
      samples.push_back(json::string(**text));
    } else {
      ++unfinished;
    }
  }
  out["texts"] = std::move(judged);
  if (job.samples > 0) {
    out["samples"] = std::move(samples);
    out["unfinished"] = unfinished;
    out["failures"] = std::move(failures);
  }
  return out;
}

Result<ConstraintJob> parse_job(const std::string& line, const ConstrainOptions& defaults) {
  Result<json::value> value = parse_json(line);
  if (!value) return value.error();
  if (!value->is_object()) return Error{400, "not an object"};
  const json::object& o = value->get_object();
  ConstraintJob job;
  job.source.kind = defaults.kind;
  job.source.space = defaults.space;
  job.seed = defaults.seed;
  if (const json::value* kind = o.if_contains("kind")) {
    auto known = value_named(constrain::kConstraintKinds,
                             kind->is_string() ? std::string_view(kind->get_string()) : "");
    if (!known) return Error{400, "\"kind\" is none of those of --kind"};
    job.source.kind = *known;
  }
  const json::value* source = o.if_contains("source");
  if (!source) return Error{400, "\"source\" is missing"};
  job.source.text = source->is_string() && job.source.kind != constrain::ConstraintKind::json_schema
                        ? std::string(source->get_string())
                        : json::serialize(*source);
  for (auto [name, list] : {std::pair{"texts", &job.texts}, {"hints", &job.hints}}) {
    const json::value* texts = o.if_contains(name);
    if (!texts || !texts->is_array()) continue;
    for (const json::value& t : texts->get_array()) {
      if (!t.is_string()) return Error{400, strf("\"%s\" must be strings", name)};
      list->emplace_back(t.get_string());
    }
  }
  if (const json::value* n = o.if_contains("samples"); n && n->is_int64()) {
    job.samples = static_cast<int>(std::clamp<int64_t>(n->get_int64(), 0, 1'000'000));
  }
  return job;
}

int constraint_lines(const ConstrainOptions& o, const ConstraintModel& model) {
  Result<std::string> text = read_text(o.jsonl);
  if (!text) return report(text.error());
  size_t number = 0;
  for (size_t at = 0; at < text->size();) {
    size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Result<ConstraintJob> job = parse_job(line, o);
    if (!job) {
      return report({400, strf("line %zu: %s", number, job.error().message.c_str())});
    }
    std::printf("%s\n", json::serialize(run_job(*job, model)).c_str());
  }
  return kExitOk;
}

double constraint_percentile(std::vector<double>& v, double p) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[std::min(v.size() - 1, static_cast<size_t>(p * static_cast<double>(v.size())))];
}

}  // namespace

int cmd_constrain(const ConstrainOptions& o) {
  bool needs_file = o.kind != constrain::ConstraintKind::json_object;
  if (o.jsonl.empty() && o.file.empty() && needs_file) {
    return report({400, "give the file with the schema, regex or grammar, or --jsonl FILE"});
  }
  if (!o.jsonl.empty() && !o.file.empty()) return report({400, "give a file or --jsonl, not both"});
  Result<ConstraintModel> model = load_constraint_model(o.model);
  if (!model) return report(model.error());
  if (!o.jsonl.empty()) return constraint_lines(o, *model);
  ConstraintJob job{{o.kind, "", o.space}, {}, {}, o.samples, o.seed};
  if (!o.file.empty()) {
    Result<std::string> text = read_text(o.file);
    if (!text) return report(text.error());
    job.source.text = std::move(*text);
    bool line = o.kind == constrain::ConstraintKind::regex;
    if (line && job.source.text.ends_with('\n')) job.source.text.pop_back();
  }
  for (const std::string& file : o.texts) {
    Result<std::string> text = read_text(file);
    if (!text) return report(text.error());
    if (text->ends_with('\n')) text->pop_back();
    job.texts.push_back(std::move(*text));
  }
  json::object result = run_job(job, *model);
  bool supported = result["supported"].as_bool();
  bool accepted = supported;
  if (o.json) {
    if (supported) {
      for (const json::value& v : result["texts"].as_array()) accepted &= v.as_bool();
    }
    std::printf("%s\n", json::serialize(result).c_str());
    return accepted ? kExitOk : kExitUsage;
  }
  if (!supported) return report({400, std::string(result["error"].as_string())});
  std::printf("supported, compiled in %.2f ms\n", result["compile_ms"].as_double());
  for (size_t i = 0; i < job.texts.size(); ++i) {
    bool valid = result["texts"].as_array()[i].as_bool();
    accepted &= valid;
    std::printf("%s: %s\n", o.texts[i].c_str(), valid ? "accepted" : "not accepted");
  }
  if (o.samples > 0) {
    for (const json::value& s : result["samples"].as_array()) {
      std::printf("%s\n", s.as_string().c_str());
    }
    for (const json::value& f : result["failures"].as_array()) {
      return report({400, std::string(f.as_string())});
    }
  }
  return accepted ? kExitOk : kExitUsage;
}

int cmd_bench_constraints(const BenchConstraintsOptions& o) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(o.folder, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  if (error) return report({400, strf("%s: %s", o.folder.c_str(), error.message().c_str())});
  if (files.empty()) return report({400, strf("%s has no *.json files", o.folder.c_str())});
  std::sort(files.begin(), files.end());
  Result<ConstraintModel> model = load_constraint_model(o.model);
  if (!model) return report(model.error());
  MaskTimes masks;
  std::vector<double> compile_ms;
  size_t supported = 0, unfinished = 0;
  for (const fs::path& file : files) {
    Result<std::string> text = read_text(file.string());
    if (!text) return report(text.error());
    Result<json::value> value = parse_json(*text);
    if (!value) return report({400, file.string() + ": " + value.error().message});
    const json::object* whole = value->if_object();
    const json::value* schema = whole ? whole->if_contains("schema") : nullptr;
    const json::value* tests = whole ? whole->if_contains("tests") : nullptr;
    std::string source = json::serialize(schema && tests ? *schema : *value);
    double start = thread_seconds();
    auto constraint =
        Constraint::compile({constrain::ConstraintKind::json_schema, source}, model->trie);
    compile_ms.push_back(1e3 * (thread_seconds() - start));
    if (!constraint) continue;
    ++supported;
    if (schema && tests && tests->is_array()) {
      for (const json::value& test : tests->get_array()) {
        const json::object* t = test.if_object();
        if (!t || !t->if_contains("data") || !t->if_contains("valid")) continue;
        if (!t->at("valid").is_bool() || !t->at("valid").get_bool()) continue;
        judge_tokens(*constraint, *model->tokenizer, json::serialize(t->at("data")), &masks);
      }
    }
    for (int i = 0; i < o.samples; ++i) {
      auto made = random_text(*constraint, o.seed + static_cast<uint64_t>(i), 2'000, {}, &masks);
      unfinished += !made || !*made;
    }
  }
  double total = 0;
  for (double us : masks.us) total += us;
  json::object out{
      {"schemas", files.size()},
      {"supported", supported},
      {"samples_unfinished", unfinished},
      {"compile_ms_p50", constraint_percentile(compile_ms, 0.5)},
      {"compile_ms_p90", constraint_percentile(compile_ms, 0.9)},
      {"compile_ms_max", constraint_percentile(compile_ms, 1)},
      {"masks", masks.us.size()},
      {"mask_us_mean", masks.us.empty() ? 0 : total / static_cast<double>(masks.us.size())},
      {"mask_us_p50", constraint_percentile(masks.us, 0.5)},
      {"mask_us_p99", constraint_percentile(masks.us, 0.99)},
      {"mask_us_max", constraint_percentile(masks.us, 1)},
      {"vocabulary", model->trie->vocab_size()}};
  if (o.json) {
    std::printf("%s\n", json::serialize(out).c_str());
    return kExitOk;
  }
  std::printf("%zu schemas, %zu supported; %zu samples unfinished\n", files.size(), supported,
              unfinished);
  std::printf("compile: p50 %.2f ms, p90 %.2f ms, worst %.1f ms (thread time)\n",
              constraint_percentile(compile_ms, 0.5), constraint_percentile(compile_ms, 0.9),
              constraint_percentile(compile_ms, 1));
  std::printf("mask: %zu of %zu tokens; mean %.1f us, p50 %.1f us, p99 %.0f us, worst %.0f us\n",
              masks.us.size(), model->trie->vocab_size(), out["mask_us_mean"].to_number<double>(),
              constraint_percentile(masks.us, 0.5), constraint_percentile(masks.us, 0.99),
              constraint_percentile(masks.us, 1));
  return kExitOk;
}

}  // namespace sluice
