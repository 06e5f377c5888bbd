#include "tools/plan/table.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/json.h"
#include "base/str.h"
#include "load/open.h"
#include "runtime/placement.h"
#include "tools/commands.h"
#include "tools/locate_model.h"
#include "tools/plan/cost_file.h"
#include "tools/plan/cpu_kernels.h"
#include "tools/plan/plan.h"
#include "tools/plan/target.h"

namespace sluice {

namespace {

constexpr TableFormat kTableFormats[] = {
    {"bf16", 16, WeightUse::plain},
    {"fp8", 8, WeightUse::bits8},       // or int8, where the device has that
    {"4-bit", 4.5, WeightUse::stored},  // with the scales of blocks of 32
};

// A device, or the machine that a cost was measured on.
struct TableRow {
  std::string device, format;
  double memory = 0, price = 0;
  SolModel model;
  StepCost cost;
};

std::string weights_of(const CostFile& f) {
  return f.types.quantize == "none" ? f.format : f.types.quantize;
}

// This CPU, with the weights as the file has them.
TableRow cpu_row(const Checkpoint& file, const ModelShape& shape, const PlanTableOptions& o) {
  TableRow r;
  r.device = "cpu", r.format = cost_format(o.model, o.format);
  r.memory = static_cast<double>(available_memory()), r.price = o.price;
  r.model = sol_model(file, shape, 0);
  r.cost = derive_cpu_cost(shape,
                           this_cpu(file, shape, LoadQuant(), num_threads(EngineOptions()), false));
  return r;
}

void print_cell(const TableRow& row, const TableCell& c) {
  std::printf("%-10s %-6s %5d ", row.device.c_str(), row.format.c_str(), c.batch);
  if (!c.fits) {
    std::printf("does not fit\n");
    return;
  }
  std::printf("%9.0f %9.2f %9.1f %9s  %s\n", c.rate, c.step * 1e3, c.ttft * 1e3,
              c.per_million > 0 ? strf("%.2f", c.per_million).c_str() : "-", c.bound);
}

json::object cell_json(const TableRow& r, const TableCell& c) {
  json::object j{{"device", r.device}, {"format", r.format}, {"batch", c.batch}, {"fits", c.fits}};
  if (c.fits) {
    j["output_tokens_per_s"] = c.rate;
    j["step_s"] = c.step;
    j["ttft_s"] = c.ttft;
    j["bound"] = c.bound;
    if (c.per_million > 0) j["dollars_per_million_output_tokens"] = c.per_million;
  }
  return j;
}

}  // namespace

std::span<const TableFormat> table_formats() { return kTableFormats; }

TableCell table_cell(const SolModel& m,
                     const StepCost& cost,
                     double memory,
                     double price,
                     int batch,
                     int context,
                     int prompt) {
  TableCell c;
  c.batch = batch;
  c.fits = m.memory(batch, context) <= memory;
  if (!c.fits) return c;
  const StepLoad decode = sol_decode(batch, context);
  c.step = cost.seconds(decode);
  c.rate = batch / c.step;
  c.ttft = cost.seconds(sol_prompt(prompt));
  if (price > 0) c.per_million = price / 3600 / c.rate * 1e6;
  const double kv = (cost.context + cost.attended) * static_cast<double>(decode.context);
  const double alone = cost.seconds({.tokens = 1, .sampled = 0, .context = 0, .attended = 0});
  const double rest = c.step - kv;
  c.bound = kv > rest ? "KV" : rest > 1.5 * alone ? "arithmetic" : "weights";
  return c;
}

int cmd_plan_table(const PlanTableOptions& o) {
  Result<std::string> path = locate_model(o.model, true);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> file = open_model(*path, o.format, 1);
  if (!file) return report(file.error());
  Result<ModelShape> shape = read_shape(**file);
  if (!shape) return report(shape.error());
  std::vector<TableRow> rows;
  if (!o.cost.empty()) {
    Result<CostFile> cost = load_cost(o.cost);
    if (!cost) return report(cost.error());
    if (auto ok = check_cost_shape(*cost, o.cost, o.model, *shape); !ok) return report(ok.error());
    TableRow& r = rows.emplace_back();
    r.device = "measured", r.format = weights_of(*cost);
    r.memory = cost->memory, r.price = o.price;
    r.model = sol_model(**file, *shape, 0);
    r.model.kv_token = cost->kv_token;
    r.cost = cost->cost;
  }
  std::vector<const SolDevice*> devices;
  bool cpu = false;
  for (const std::string& name : o.devices) {
    cpu |= name == "cpu";
    if (name == "cpu") continue;
    devices.push_back(find_sol_device(name));
    if (!devices.back())
      return report(Error{400, strf("no device %s: it may be cpu, %s", quote(name).c_str(),
                                    sol_device_names().c_str())});
  }
  if (cpu) rows.push_back(cpu_row(**file, *shape, o));
  if (o.devices.empty())
    for (const SolDevice& d : sol_devices()) devices.push_back(&d);
  for (const SolDevice* d : devices) {
    for (const TableFormat& f : kTableFormats) {
      TableRow& r = rows.emplace_back();
      r.device = d->name, r.format = f.name;
      r.memory = d->memory * kUsableMemory;
      r.price = o.price > 0 ? o.price : d->price;
      r.model = sol_model(**file, *shape, f.bits);
      r.cost = derive_cost(r.model, *d, kGpuReached, f.use);
    }
  }
  json::array cells;
  if (!o.json)
    std::printf(
        "%s; context %d, prompts of %d, K and V in 16 bits\n\n%-10s %-6s %5s %9s %9s %9s %9s"
        "  %s\n",
        o.model.c_str(), o.context, o.prompt, "device", "format", "batch", "tokens/s", "ms/token",
        "TTFT ms", "$/M", "bound by");
  for (const TableRow& r : rows) {
    for (int batch : o.batches) {
      const TableCell c =
          table_cell(r.model, r.cost, r.memory, r.price, batch, o.context, o.prompt);
      if (!o.json) {
        print_cell(r, c);
        continue;
      }
      cells.push_back(cell_json(r, c));
    }
  }
  if (o.json) {
    const json::object j{{"model", o.model},
                         {"context", o.context},
                         {"prompt", o.prompt},
                         {"prices", "assumed"},
                         {"cells", std::move(cells)}};
    std::printf("%s\n", plain_json(j).c_str());
  } else {
    std::printf(
        "\nEstimates from nominal figures (of this CPU: measured ones) and what this engine "
        "reaches "
        "of them; prices per hour are assumptions (--price).\n");
  }
  return kExitOk;
}

}  // namespace sluice
