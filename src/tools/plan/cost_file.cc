#include "tools/plan/cost_file.h"

#include "base/json.h"
#include "base/str.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

// Reads the fields of an object; remembers the first that is not there or of another kind.
class CostReader {
 public:
  explicit CostReader(const json::object& object) : object_(object) {}
  void text(const char* name, std::string& to) {
    const json::value* v = object_.if_contains(name);
    if (v && v->is_string()) {
      to = std::string(v->as_string());
    } else {
      miss(name);
    }
  }
  void number(const char* name, double& to) {
    const json::value* v = object_.if_contains(name);
    if (v && v->is_number()) {
      to = v->to_number<double>();
    } else {
      miss(name);
    }
  }
  void whole(const char* name, int& to) {
    double v = 0;
    number(name, v);
    if (!(v >= 0 && v < 1e9)) return miss(name);
    to = static_cast<int>(v);
  }
  void miss(const char* name) {
    if (missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  const json::object& object_;
  std::string missing_;
};

}  // namespace

std::string cost_to_json(const CostFile& f) {
  json::array rows;
  for (const StepCost::Knot& k : f.cost.rows) rows.push_back(json::array{k.tokens, k.seconds});
  const json::object j{{"sluice_step_cost", kCostVersion},
                       {"model", f.model},
                       {"format", f.format},
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
  if (version != kCostVersion)
    return Error{400, strf("step costs of version %d, and this program reads version %d: run "
                           "`sluice plan calibrate` again",
                           version, kCostVersion)};
  CostFile f;
  r.text("model", f.model);
  r.text("format", f.format);
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
  r.number("host_step", f.cost.host_step);
  r.number("host_slice", f.cost.host_slice);
  const json::value* rows = o.if_contains("rows");
  if (!rows || !rows->is_array() || rows->as_array().empty()) r.miss("rows");
  if (!r.missing().empty())
    return Error{400, strf("step costs without a good %s", quote(r.missing()).c_str())};
  for (const json::value& row : rows->as_array()) {
    if (!row.is_array() || row.as_array().size() != 2 || !row.as_array()[0].is_number() ||
        !row.as_array()[1].is_number())
      return Error{400, "step costs without good \"rows\": pairs of tokens and seconds"};
    f.cost.rows.push_back(
        {row.as_array()[0].to_number<double>(), row.as_array()[1].to_number<double>()});
  }
  if (!f.cost.valid()) return Error{400, "step costs that are negative, or fall as steps grow"};
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
