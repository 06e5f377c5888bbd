// sluice sol: limits of hardware one does not have.
#include "tools/sol.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/run_report.h"

namespace sluice {

namespace {

constexpr SolDevice kSolDevices[] = {
    {"T4", 16e9, 320e9, 65e12, 130e12, 16e9, 0.35},
    {"L4", 24e9, 300e9, 121e12, 242e12, 32e9, 0.70},
    {"RTX 3090", 24e9, 936e9, 71e12, 142e12, 32e9, 0.25},
    {"RTX 4090", 24e9, 1008e9, 165e12, 330e12, 32e9, 0.40},
    {"L40S", 48e9, 864e9, 362e12, 733e12, 32e9, 0.90},
    {"V100 32GB", 32e9, 900e9, 125e12, 0, 150e9, 0.60},
    {"A100 80GB", 80e9, 2039e9, 312e12, 624e12, 300e9, 1.60},
    {"H100 SXM", 80e9, 3350e9, 989e12, 1979e12, 450e9, 2.50},
    {"H200", 141e9, 4800e9, 989e12, 1979e12, 450e9, 3.20},
    {"B200", 180e9, 8000e9, 2250e12, 4500e12, 900e9, 5.00},
    {"MI300X", 192e9, 5300e9, 1307e12, 2614e12, 448e9, 2.50},
};

struct SolRow {
  const SolDevice* device;
  int fits = 0;                           // sequences of the context
  double one = 0, many = 0, prefill = 0;  // tokens/s; 0: does not fit
};

SolRow sol_row(const SolModel& m, const SolOptions& o, const SolDevice& d) {
  SolRow r{&d, sol_fits(m, o.context, d)};
  if (r.fits < 1) return r;
  const int batch = std::min(o.batch, r.fits);
  r.one = 1 / sol_step(m, sol_decode(1, o.context), d);
  r.many = batch / sol_step(m, sol_decode(batch, o.context), d);
  r.prefill = o.prompt / sol_step(m, sol_prompt(o.prompt), d);
  return r;
}

}  // namespace

std::span<const SolDevice> sol_devices() { return kSolDevices; }

std::string sol_device_names() {
  std::string out;
  for (const SolDevice& d : kSolDevices) out += strf("%s%s", out.empty() ? "" : ", ", d.name);
  return out;
}

const SolDevice* find_sol_device(std::string_view name) {
  const auto plain = [](std::string_view text) {
    std::string out;
    for (char c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
      if (c != ' ' && c != '-' && c != '_') out += c;
    }
    return out;
  };
  for (const SolDevice& d : kSolDevices)
    if (plain(d.name) == plain(name)) return &d;
  return nullptr;
}

SolModel sol_model(const Checkpoint& file, const ModelShape& shape, double bits) {
  SolModel m;
  m.shape = shape;
  m.kv_token = static_cast<double>(shape.kv_bytes_per_token(KvType(DType::f16)));
  double embedding = 0;
  bool untied = false;
  for (const TensorInfo& t : file.tensors()) {
    const double bytes = bits > 0
                             ? static_cast<double>(t.rows) * static_cast<double>(t.cols) * bits / 8
                             : static_cast<double>(t.bytes);
    m.weights += bytes;
    if (t.name == "token_embd.weight") embedding = bytes;
    untied |= t.name == "output.weight";
  }
  m.step = m.weights - (untied ? embedding : 0);
  return m;
}

StepLoad sol_decode(int sequences, int context) {
  const int64_t all = static_cast<int64_t>(sequences) * context;
  return {.tokens = sequences, .sampled = sequences, .context = all, .attended = all};
}

StepLoad sol_prompt(int tokens) {
  const int64_t n = tokens;
  return {.tokens = tokens, .sampled = 1, .context = n, .attended = n * (n + 1) / 2};
}

double sol_step(const SolModel& m, const StepLoad& load, const SolDevice& d) {
  const double all = step_ops(m.shape, load);
  StepLoad linear = load;
  linear.attended = 0;
  const double weights = step_ops(m.shape, linear);
  const double kv = static_cast<double>(load.context) * m.kv_token;
  return std::max(m.step / d.bandwidth, weights / d.peak) +
         std::max(kv / d.bandwidth, (all - weights) / d.peak);
}

int sol_fits(const SolModel& m, int context, const SolDevice& d) {
  const double left = d.memory - m.weights;
  return left <= 0 ? 0 : static_cast<int>(std::min(left / (context * m.kv_token), 1e9));
}

int cmd_sol(const SolOptions& o) {
  Result<std::string> path = locate_model(o.model, true);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> file = open_model(*path, o.format, 1);
  if (!file) return report(file.error());
  Result<ModelShape> shape = read_shape(**file);
  if (!shape) return report(shape.error());
  const SolModel model = sol_model(**file, *shape, o.bits);
  std::vector<SolDevice> devices;
  if (o.bandwidth > 0)
    devices.push_back({"yours", o.memory * 1e9, o.bandwidth * 1e9, o.peak * 1e12});
  if (o.table || devices.empty())
    devices.insert(devices.end(), std::begin(kSolDevices), std::end(kSolDevices));
  json::array rows;
  if (!o.json)
    std::printf(
        "%s: %s of weights, %s of KV per token (f16); context %d\n\n%-10s %7s %7s %8s %7s %9s "
        "%12s %12s %14s\n",
        o.model.c_str(), human_bytes(static_cast<size_t>(model.weights)).c_str(),
        human_bytes(static_cast<size_t>(model.kv_token)).c_str(), o.context, "device", "GB", "GB/s",
        "TFLOP/s", "op/byte", "sequences", "1 user tok/s", strf("%d users", o.batch).c_str(),
        strf("prefill of %d", o.prompt).c_str());
  for (const SolDevice& d : devices) {
    const SolRow r = sol_row(model, o, d);
    if (o.json) {
      rows.push_back(json::object{{"device", d.name},
                                  {"memory", d.memory},
                                  {"bandwidth", d.bandwidth},
                                  {"peak", d.peak},
                                  {"sequences", r.fits},
                                  {"decode_tokens_per_s", r.one},
                                  {"batch_tokens_per_s", r.many},
                                  {"prefill_tokens_per_s", r.prefill}});
      continue;
    }
    std::printf("%-10s %7.0f %7.0f %8.0f %7.0f ", d.name, d.memory / 1e9, d.bandwidth / 1e9,
                d.peak / 1e12, d.peak / d.bandwidth);
    if (r.fits < 1) {
      std::printf("does not fit\n");
    } else {
      std::printf("%9d %12.1f %12.0f %14.0f\n", r.fits, r.one, r.many, r.prefill);
    }
  }
  if (o.json) {
    json::object j{{"model", o.model},         {"weight_bytes", model.weights},
                   {"step_bytes", model.step}, {"kv_bytes_per_token", model.kv_token},
                   {"context", o.context},     {"batch", o.batch},
                   {"prompt", o.prompt},       {"devices", std::move(rows)}};
    std::printf("%s\n", plain_json(j).c_str());
  }
  return kExitOk;
}

}  // namespace sluice
