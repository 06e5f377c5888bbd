// sluice list: the models that are here, by the names that other commands take.
#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <vector>

#include "base/json.h"
#include "base/str.h"
#include "hub/hub_cache.h"
#include "hub/store.h"
#include "load/open.h"
#include "tensor/formats/all.h"
#include "tools/commands.h"
#include "tools/models.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

struct Described {
  StoredModel model;
  std::string kind;    // gguf, safetensors
  std::string format;  // Q4_K_M: by the file's name, else what most of the weights have
  std::string architecture, error;
  uint64_t parameters = 0;
  std::optional<int64_t> used;
};

void read_headers(Described& d) {
  Result<std::unique_ptr<Checkpoint>> file = open_model(d.model.path, "q8_0", 0);
  if (!file) {
    d.error = file.error().message;
    return;
  }
  std::map<std::string, uint64_t> formats;
  for (const TensorInfo& t : (*file)->tensors()) {
    d.parameters += static_cast<uint64_t>(t.rows) * static_cast<uint64_t>(t.cols);
    if (t.rows > 1) formats[format_info(t.format).name] += t.bytes;
  }
  if (d.format.empty() && !formats.empty())
    d.format = std::ranges::max_element(formats, {}, [](const auto& f) { return f.second; })->first;
  if (const std::string* arch = (*file)->meta().string("general.architecture"))
    d.architecture = *arch;
}

Described describe(StoredModel model) {
  Described d;
  bool gguf = model.path.ends_with(".gguf");
  d.kind = gguf ? "gguf" : "safetensors";
  d.format = gguf ? quant_label(model.path) : "";
  d.used = last_used(model.path);
  d.model = std::move(model);
  if (d.model.complete) read_headers(d);
  return d;
}

std::string short_count(uint64_t n) {
  auto x = static_cast<double>(n);
  if (n >= 10'000'000'000) return strf("%.0fB", x / 1e9);
  if (n >= 1'000'000'000) return strf("%.1fB", x / 1e9);
  if (n >= 1'000'000) return strf("%.0fM", x / 1e6);
  return strf("%.0fK", x / 1e3);
}

std::string ago(std::optional<int64_t> when) {
  if (!when) return "never";
  int64_t seconds = std::max<int64_t>(0, static_cast<int64_t>(std::time(nullptr)) - *when);
  auto say = [](int64_t n, const char* unit) {
    return strf("%lld %s%s ago", static_cast<long long>(n), unit, n == 1 ? "" : "s");
  };
  if (seconds < 60) return "just now";
  if (seconds < 3600) return say(seconds / 60, "minute");
  if (seconds < 2 * 86400) return say(seconds / 3600, "hour");
  return say(seconds / 86400, "day");
}

std::string iso_time(int64_t when) {
  std::time_t t = when;
  std::tm utc = {};
  gmtime_r(&t, &utc);
  char text[32];
  size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return std::string(text, n);
}

std::string format_column(const Described& d) {
  if (!d.model.complete) {
    double share = d.model.total > 0
                       ? static_cast<double>(d.model.bytes) / static_cast<double>(d.model.total)
                       : 0;
    return strf("incomplete, %.0f%%", std::min(share, 1.0) * 100);
  }
  return d.error.empty() ? d.kind + " " + d.format : "unreadable";
}

void print_json(const std::vector<Described>& all) {
  json::array out;
  for (const Described& d : all) {
    json::object o{{"name", d.model.name},
                   {"path", d.model.path},
                   {"bytes", d.model.bytes},
                   {"kind", d.kind},
                   {"format", d.format},
                   {"complete", d.model.complete},
                   {"read_only", d.model.read_only}};
    if (!d.model.commit.empty()) o["revision"] = d.model.commit;
    if (d.error.empty() && d.model.complete) {
      o["parameters"] = d.parameters;
      o["architecture"] = d.architecture;
    }
    if (!d.error.empty()) o["error"] = d.error;
    if (d.used) {
      o["used"] = iso_time(*d.used);
    } else {
      o["used"] = nullptr;
    }
    out.push_back(std::move(o));
  }
  std::printf("%s\n", plain_json(out).c_str());
}

void print_table(const std::vector<Described>& all) {
  std::vector<std::array<std::string, 5>> rows = {{"NAME", "SIZE", "FORMAT", "PARAMETERS", "USED"}};
  for (const Described& d : all) {
    rows.push_back({d.model.name, human_bytes(d.model.bytes), format_column(d),
                    d.parameters > 0 ? short_count(d.parameters) : "-",
                    d.model.read_only ? "in the hub's cache" : ago(d.used)});
  }
  std::array<size_t, 5> widths{};
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::printf("%s\n", line.c_str());
  }
}

}  // namespace

int cmd_list(const ListOptions& o) {
  std::vector<Described> all;
  for (StoredModel& m : stored_models()) all.push_back(describe(std::move(m)));
  for (StoredModel& m : hub_cache_models()) {
    bool own = std::ranges::any_of(
        all, [&](const Described& d) { return d.model.name == m.name && d.model.complete; });
    if (!own) all.push_back(describe(std::move(m)));
  }
  if (o.json) {
    print_json(all);
  } else if (all.empty()) {
    std::fprintf(stderr,
                 "no models in %s yet: `sluice pull smollm2` gets a small one, `sluice pull "
                 "hf:ORG/REPO[:QUANT]` one from Hugging Face\n",
                 models_folder().c_str());
  } else {
    print_table(all);
  }
  for (const Described& d : all)
    if (!d.error.empty() && !o.json)
      std::fprintf(stderr, "%s: %s\n", d.model.name.c_str(), d.error.c_str());
  return kExitOk;
}

}  // namespace sluice
