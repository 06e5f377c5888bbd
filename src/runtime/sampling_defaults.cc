#include "runtime/sampling_defaults.h"

#include <algorithm>
#include <charconv>

#include "base/str.h"

namespace sluice {

namespace {

struct Field {
  const char* name;  // in the API
  const char* key;   // in the metadata, after "general.sampling."; null: none
  float SamplingSpec::*to;
  std::optional<float> SamplingChoice::*from;
  double lo, hi;
};

constexpr Field kFields[] = {
    {"temperature", "temp", &SamplingSpec::temperature, &SamplingChoice::temperature, 0, 100},
    {"top_p", "top_p", &SamplingSpec::top_p, &SamplingChoice::top_p, 0, 1},
    {"min_p", "min_p", &SamplingSpec::min_p, &SamplingChoice::min_p, 0, 1},
    {"repetition_penalty", "penalty_repeat", &SamplingSpec::repetition_penalty,
     &SamplingChoice::repetition_penalty, 0, 100},
    {"frequency_penalty", nullptr, &SamplingSpec::frequency_penalty,
     &SamplingChoice::frequency_penalty, -2, 2},
    {"presence_penalty", nullptr, &SamplingSpec::presence_penalty,
     &SamplingChoice::presence_penalty, -2, 2},
};

// Models whose files say nothing and whose makers do. `name` is part of general.name, in lower case
// and without spaces, '-' and '_'.
struct KnownModel {
  const char* name;
  const char* source;
  float temperature, top_p;
};

constexpr KnownModel kKnown[] = {
    {"smollm2", "SmolLM2's makers", 0.2f, 0.9f},
};

// Below 1, since small and quantised models drift where every token is possible.
constexpr float kTemperature = 0.7f, kTopP = 0.95f;

std::string plain_name(const Meta& meta) {
  std::string out;
  for (const char* key : {"general.name", "general.basename"}) {
    const std::string* name = meta.string(key);
    for (char c : name ? *name : "") {
      if (c != ' ' && c != '-' && c != '_') out += static_cast<char>(std::tolower(c));
    }
    out += ' ';
  }
  return out;
}

// The shortest decimal form: 0.7, not 0.699999988.
double tidy(float v) {
  char text[32];
  const char* end = std::to_chars(text, text + sizeof text, v).ptr;
  double out = 0;
  std::from_chars(text, end, out);
  return out;
}

// False: the metadata say nothing.
Result<bool> read_meta(const Meta& meta, SamplingSpec& spec) {
  bool some = false;
  const std::string prefix = "general.sampling.";
  auto wrong = [&](const std::string& key) {
    return Error{400, strf("the model's %s is out of range: --generation-config none ignores it",
                           key.c_str())};
  };
  for (const Field& f : kFields) {
    if (!f.key || !meta.has(prefix + f.key)) continue;
    const std::optional<double> v = meta.number(prefix + f.key);
    const bool above = f.to == &SamplingSpec::top_p || f.to == &SamplingSpec::repetition_penalty;
    if (!v || !(*v >= f.lo && *v <= f.hi) || (above && *v == 0)) return wrong(prefix + f.key);
    spec.*f.to = static_cast<float>(*v);
    some = true;
  }
  if (meta.has(prefix + "top_k")) {
    const std::optional<int64_t> v = meta.integer(prefix + "top_k");
    if (!v || *v < -1 || *v > INT32_MAX) return wrong(prefix + "top_k");
    spec.top_k = static_cast<int>(std::max<int64_t>(*v, 0));  // -1 is off, too
    some = true;
  }
  return some;
}

}  // namespace

Result<SamplingDefaults> sampling_defaults(const Meta& meta, GenerationConfig generation_config) {
  SamplingDefaults out;
  if (generation_config == GenerationConfig::none) {
    out.source = "--generation-config none";
    return out;
  }
  const Result<bool> said = read_meta(meta, out.spec);
  if (!said) return said.error();
  out.source = "the model's files";
  if (*said) return out;
  const std::string name = plain_name(meta);
  for (const KnownModel& k : kKnown) {
    if (name.find(k.name) == name.npos) continue;
    out.spec.temperature = k.temperature;
    out.spec.top_p = k.top_p;
    out.source = k.source;
    return out;
  }
  out.spec.temperature = kTemperature;
  out.spec.top_p = kTopP;
  out.source = "sluice's own: the model's files say nothing";
  return out;
}

void apply_sampling(const SamplingDefaults& defaults,
                    const SamplingChoice& choice,
                    SamplingSpec& spec) {
  for (const Field& f : kFields) spec.*f.to = (choice.*f.from).value_or(defaults.spec.*f.to);
  spec.top_k = choice.top_k.value_or(defaults.spec.top_k);
}

std::string describe_sampling(const SamplingSpec& spec) {
  const SamplingSpec off;
  if (spec.temperature == 0) return "greedy";
  std::string out = strf("temperature %g", static_cast<double>(spec.temperature));
  if (spec.top_k != off.top_k) out += strf(", top_k %d", spec.top_k);
  for (const Field& f : kFields) {
    if (f.to == &SamplingSpec::temperature || spec.*f.to == off.*f.to) continue;
    out += strf(", %s %g", f.name, static_cast<double>(spec.*f.to));
  }
  return out;
}

json::object sampling_json(const SamplingSpec& spec) {
  json::object out;
  for (const Field& f : kFields) out[f.name] = tidy(spec.*f.to);
  out["top_k"] = spec.top_k;
  return out;
}

}  // namespace sluice
