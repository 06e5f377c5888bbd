#include "tools/plan/cost_file.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "base/json.h"
#include "base/str.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// Reads the fields of an object; remembers the first that is not there or no good.
class CostReader {
 public:
  explicit CostReader(const json::object& object) : object_(object) {}
  void text(const char* name, std::string& to) {
    const json::value* v = find(name);
    if (v && v->is_string()) {
      to = std::string(v->as_string());
    } else {
      miss(name);
    }
  }
  // Finite, not negative.
  void number(const char* name, double& to) {
    const json::value* v = find(name);
    const double is = v && v->is_number() ? v->to_number<double>() : -1;
    if (is >= 0 && std::isfinite(is)) {
      to = is;
    } else {
      miss(name);
    }
  }
  void whole(const char* name, int& to) {
    double v = 0;
    number(name, v);
    if (v >= 1e9 || v != std::floor(v)) return miss(name);
    to = static_cast<int>(v);
  }
  const json::array* list(const char* name) {
    const json::value* v = find(name);
    if (v && v->is_array() && !v->as_array().empty()) return &v->as_array();
    miss(name);
    return nullptr;
  }
  void miss(const char* name) {
    if (missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }
  // A field that nobody asked for; empty: none.
  std::string unknown() const {
    for (const auto& field : object_)
      if (!asked_.contains(std::string(field.key()))) return field.key();
    return {};
  }

 private:
  const json::value* find(const char* name) {
    asked_.insert(name);
    return object_.if_contains(name);
  }

  const json::object& object_;
  std::set<std::string> asked_;
  std::string missing_;
};

// Whether the machine's line has the model number of a device of the table: the "4090" of
// "RTX 4090", the "H100" of "H100-SXM".
bool names_device(std::string_view machine, std::string_view device) {
  const auto words = [](std::string_view text) {
    std::vector<std::string> out(1);
    for (char c : text) {
      if (std::isalnum(static_cast<unsigned char>(c))) {
        out.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      } else if (!out.back().empty()) {
        out.emplace_back();
      }
    }
    return out;
  };
  const std::vector<std::string> has = words(machine);
  for (const std::string& word : words(device))
    if (word.find_first_of("0123456789") != word.npos)
      return std::find(has.begin(), has.end(), word) != has.end();
  return true;
}

// "--quantize w4", or how one says that there is none: the first option that differs, of both.
struct TypeDifference {
  std::string file, use;
};
std::optional<TypeDifference> differ(const WeightTypes& a, const WeightTypes& b, bool gpu) {
  const auto option = [](const char* name, const std::string& value) {
    return value.empty() ? strf("no %s", name) : strf("%s %s", name, value.c_str());
  };
  if (a.quantize != b.quantize)
    return TypeDifference{option("--quantize", a.quantize), option("--quantize", b.quantize)};
  if (a.quantize != "none" && a.quantize_exclude != b.quantize_exclude)
    return TypeDifference{option("--quantize-exclude", a.quantize_exclude),
                          option("--quantize-exclude", b.quantize_exclude)};
  if (gpu && a.gpu_weights != b.gpu_weights)
    return TypeDifference{option("--gpu-weights", a.gpu_weights),
                          option("--gpu-weights", b.gpu_weights)};
  if (gpu && a.dtype != b.dtype)
    return TypeDifference{option("--dtype", a.dtype), option("--dtype", b.dtype)};
  return {};
}

}  // namespace

WeightTypes weight_types(const EngineOptions& o) {
  return {name_of(kQuantizes, o.quantize), o.quantize_exclude, name_of(kGpuWeights, o.gpu_weights),
          name_of(kDtypes, o.dtype)};
}

std::string cost_format(const std::string& model, const std::string& random_format) {
  return model.starts_with("random:") ? random_format : "file";
}

Result<void> check_cost_shape(const CostFile& f,
                              const std::string& path,
                              const std::string& model,
                              const ModelShape& shape) {
  if (f.fits(shape)) return {};
  return Error{400, strf("%s has the costs of %s (%d layers, hidden %d), and %s has %d layers, "
                         "hidden %d: run `sluice plan calibrate` for it",
                         quote(path, 400).c_str(), quote(f.model).c_str(), f.layers, f.hidden,
                         quote(model).c_str(), shape.num_layers, shape.hidden)};
}

Result<void> check_cost_use(const CostFile& f, const std::string& path, const CostUse& use) {
  const std::string file = quote(path, 400);
  if (f.format != use.format)
    return Error{400, strf("%s has the costs of weights in %s, and those of %s are in %s: run "
                           "`sluice plan calibrate` for them",
                           file.c_str(), quote(f.format).c_str(), quote(use.model).c_str(),
                           quote(use.format).c_str())};
  if (f.is_gpu() != use.gpu)
    return Error{400,
                 strf("%s was measured on %s: choose that with --device, or calibrate on %s",
                      file.c_str(), f.is_gpu() ? "a GPU" : "a CPU", use.gpu ? "a GPU" : "the CPU")};
  if (!use.gpu && f.threads != use.threads)
    return Error{400, strf("%s was measured with -t %d, and this would run with -t %d: add -t %d, "
                           "or calibrate again",
                           file.c_str(), f.threads, use.threads, f.threads)};
  if (use.gpu && !use.gpu_name.empty() && !names_device(f.machine, use.gpu_name))
    return Error{400,
                 strf("%s was measured on %s: leave --device out, or calibrate on %s", file.c_str(),
                      quote(f.machine, 200).c_str(), quote(use.gpu_name).c_str())};
  if (const auto d = differ(f.types, use.types, use.gpu)) {
    return Error{400,
                 strf("%s was measured with %s, and this would run with %s: change the options, or "
                      "run `sluice plan calibrate` with them",
                      file.c_str(), quote(d->file, 200).c_str(), quote(d->use, 200).c_str())};
  }
  return {};
}

std::string cost_to_json(const CostFile& f) {
  json::array rows;
  for (const StepCost::Knot& k : f.cost.rows) rows.push_back(json::array{k.tokens, k.seconds});
  const json::object j{{"sluice_step_cost", kCostVersion},
                       {"model", f.model},
                       {"format", f.format},
                       {"quantize", f.types.quantize},
                       {"quantize_exclude", f.types.quantize_exclude},
                       {"gpu_weights", f.types.gpu_weights},
                       {"dtype", f.types.dtype},
                       {"arch", f.arch},
                       {"layers", f.layers},
                       {"hidden", f.hidden},
                       {"vocab", f.vocab},
                       {"device", f.device},
                       {"machine", f.machine},
                       {"measured", f.measured},
                       {"threads", f.threads},
                       {"kv_bytes_per_token", f.kv_token},
                       {"memory", f.memory},
                       {"steps", f.num_steps},
                       {"error_p50", f.error_p50},
                       {"error_p90", f.error_p90},
                       {"rows", std::move(rows)},
                       {"sampled", f.cost.sampled},
                       {"context", f.cost.context},
                       {"attended", f.cost.attended},
                       {"prompts", f.cost.prompts},
                       {"host_step", f.cost.host_step},
                       {"host_slice", f.cost.host_slice}};
  return plain_json(j) + "\n";
}

Result<CostFile> parse_cost(std::string_view text) {
  Result<json::value> v = parse_json(text);
  if (!v) return v.error();
  if (!v->is_object() || !v->as_object().contains("sluice_step_cost"))
    return Error{400, "this is no file of step costs: `sluice plan calibrate` writes them"};
  const json::object& o = v->as_object();
  CostReader r(o);
  int version = 0;
  r.whole("sluice_step_cost", version);
  if (version != kCostVersion && r.missing().empty())
    return Error{400, strf("step costs of version %d, and this program reads version %d: run "
                           "`sluice plan calibrate` again",
                           version, kCostVersion)};
  CostFile f;
  r.text("model", f.model);
  r.text("format", f.format);
  r.text("quantize", f.types.quantize);
  r.text("quantize_exclude", f.types.quantize_exclude);
  r.text("gpu_weights", f.types.gpu_weights);
  r.text("dtype", f.types.dtype);
  r.text("arch", f.arch);
  r.whole("layers", f.layers);
  r.whole("hidden", f.hidden);
  r.whole("vocab", f.vocab);
  r.text("device", f.device);
  r.text("machine", f.machine);
  r.text("measured", f.measured);
  r.whole("threads", f.threads);
  r.number("kv_bytes_per_token", f.kv_token);
  r.number("memory", f.memory);
  r.whole("steps", f.num_steps);
  r.number("error_p50", f.error_p50);
  r.number("error_p90", f.error_p90);
  r.number("sampled", f.cost.sampled);
  r.number("context", f.cost.context);
  r.number("attended", f.cost.attended);
  r.number("prompts", f.cost.prompts);
  r.number("host_step", f.cost.host_step);
  r.number("host_slice", f.cost.host_slice);
  const json::array* rows = r.list("rows");
  if (!r.missing().empty())
    return Error{400, strf("step costs without a good %s", quote(r.missing()).c_str())};
  if (const std::string name = r.unknown(); !name.empty())
    return Error{400, strf("step costs with a field %s that nobody knows", quote(name).c_str())};
  for (const json::value& row : *rows) {
    if (!row.is_array() || row.as_array().size() != 2 || !row.as_array()[0].is_number() ||
        !row.as_array()[1].is_number())
      return Error{400, "step costs without good \"rows\": pairs of tokens and seconds"};
    f.cost.rows.push_back(
        {row.as_array()[0].to_number<double>(), row.as_array()[1].to_number<double>()});
  }
  if (!f.cost.valid())
    return Error{400, "step costs that are negative, fall as steps grow, or have no end"};
  if (!(f.cost.rows.back().seconds > 0)) return Error{400, "step costs of nothing"};
  return f;
}

Result<CostFile> load_cost(const std::string& path) {
  Result<std::string> text = read_text(path);
  if (!text) return text.error();
  Result<CostFile> file = parse_cost(*text);
  if (!file)
    return Error{400, strf("%s: %s", quote(path, 400).c_str(), file.error().message.c_str())};
  return file;
}

}  // namespace sluice
