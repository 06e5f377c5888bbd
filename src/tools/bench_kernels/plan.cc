#include "tools/bench_kernels/plan.h"

#include <algorithm>
#include <cstdio>

#include "backend/cpu/features.h"
#include "base/str.h"
#include "load/open.h"
#include "tools/bench_limits.h"

namespace sluice {

namespace {

constexpr int kMostLogits = 64;   // rows: a prompt's logits are wanted of its last position only
constexpr int kMostDecodes = 64;  // sequences
constexpr int kLeastPrompt = 16;  // tokens
constexpr int kContexts[] = {512, 4096};

bool listed(const std::vector<std::string>& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

// What a row's weights are, as users name it: "q8_0" of "avx512vnni-q8_0".
std::string_view format_of(const MatmulRow& row) {
  std::string_view name = row.name;
  return name.substr(name.rfind('-') + 1);
}

// The rows of the table that are asked for, in its order.
std::vector<const MatmulRow*> chosen_rows(const BenchKernelsOptions& o) {
  std::vector<const MatmulRow*> rows;
  for (const MatmulRow& row : matmul_rows()) {
    if (!cpu_features().has(row.need)) continue;
    if (!o.formats.empty() && !listed(o.formats, format_of(row))) continue;
    bool seen = std::ranges::any_of(
        rows, [&](const MatmulRow* r) { return format_of(*r) == format_of(row); });
    if (o.names.empty() ? o.rows == KernelRows::all || !seen : listed(o.names, row.name))
      rows.push_back(&row);
  }
  return rows;
}

// As --kv names them.
struct KvChoice {
  const char* name;
  KvType type;
};
std::vector<KvChoice> kv_choices() {
  return {{"attention-f16", DType::f16},
          {"attention-int8:8", {DType::i8, 8}},
          {"attention-int8:32", {DType::i8, 32}},
          {"attention-int8:64", {DType::i8, 64}}};
}

std::vector<int> within(const std::vector<int>& ms, int lo, int hi) {
  std::vector<int> out;
  std::ranges::copy_if(ms, std::back_inserter(out), [&](int m) { return m >= lo && m <= hi; });
  return out;
}

// Every name that was asked for must be known: what is left out in silence looks measured.
Result<void> check_names(const BenchKernelsOptions& o, const std::vector<KernelCaseId>& cases) {
  auto check = [&](const std::vector<std::string>& names, const char* what,
                   auto matches) -> Result<void> {
    for (const std::string& name : names) {
      if (std::ranges::any_of(cases, [&](const KernelCaseId& c) { return matches(c, name); }))
        continue;
      return Error{400, strf("%s %s: nothing here is called that%s", what, quote(name).c_str(),
                             " (bench kernels --rows all shows the names that this CPU has)")};
    }
    return {};
  };
  if (auto ok = check(o.names, "--row",
                      [](const KernelCaseId& c, const std::string& n) { return c.kernel == n; });
      !ok)
    return ok;
  if (auto ok = check(o.formats, "--format",
                      [](const KernelCaseId& c, const std::string& n) {
                        return c.row && format_of(*c.row) == n;
                      });
      !ok)
    return ok;
  return check(o.products, "--product",
               [](const KernelCaseId& c, const std::string& n) { return c.product == n; });
}

}  // namespace

std::string KernelCaseId::key(int m) const {
  return strf("%s %s %s %d", kernel.c_str(), shape_name.c_str(), product.c_str(), m);
}

// "1,8,32-34": ascending, each once.
Result<std::vector<int>> parse_ms(const std::string& text) {
  constexpr int kMost = 8192;
  std::vector<int> ms;
  Error bad{400, strf("--m %s: write numbers and ranges up to %d, like 1,8,512 or 1-33",
                      quote(text).c_str(), kMost)};
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, end - at);
    at = end + 1;
    int lo = 0, hi = 0, used = 0;
    if (std::sscanf(part.c_str(), "%d%n", &lo, &used) != 1) return bad;
    hi = lo;
    if (part[static_cast<size_t>(used)] == '-') {
      int more = 0;
      if (std::sscanf(part.c_str() + used, "-%d%n", &hi, &more) != 1) return bad;
      used += more;
    }
    if (static_cast<size_t>(used) != part.size() || lo < 1 || hi < lo || hi > kMost) return bad;
    for (int m = lo; m <= hi; ++m) ms.push_back(m);
  }
  std::ranges::sort(ms);
  ms.erase(std::unique(ms.begin(), ms.end()), ms.end());
  return ms;
}

Result<std::vector<KernelCaseId>> kernel_cases(const BenchKernelsOptions& o,
                                               const std::vector<int>& ms) {
  std::vector<KernelCaseId> cases;
  std::vector<ModelShape> shapes;
  for (const std::string& name : o.shapes) {
    auto checkpoint = open_model("random:" + name, "q8_0", 1);
    if (!checkpoint) return checkpoint.error();
    auto shape = read_shape(**checkpoint);
    if (!shape) return shape.error();
    shapes.push_back(*shape);
  }
  // --quick has products of its own where none is named; a run that has not all of them is no
  // error.
  static const std::vector<std::string> kQuick{"gate_up", "up", "down", "decode@512", "prefill"};
  auto add = [&](KernelCaseId c) {
    bool wanted =
        !o.products.empty() ? listed(o.products, c.product) : !o.quick || listed(kQuick, c.product);
    if (!c.ms.empty() && wanted) cases.push_back(std::move(c));
  };
  for (const MatmulRow* row : chosen_rows(o)) {
    for (size_t s = 0; s < shapes.size(); ++s) {
      for (const Product& p : products(shapes[s])) {
        int most = std::string_view(p.name) == "lm_head" ? kMostLogits : ms.back();
        KernelCaseId c;
        c.kernel = row->name;
        c.shape_name = o.shapes[s];
        c.product = p.name;
        c.row = row;
        c.rows = p.rows;
        c.cols = p.cols;
        c.times = p.times;
        c.ms = within(ms, 1, most);
        add(std::move(c));
      }
    }
  }
  for (const KvChoice& kv : kv_choices()) {
    if (!o.formats.empty() || (!o.names.empty() && !listed(o.names, kv.name))) continue;
    for (size_t s = 0; s < shapes.size(); ++s) {
      if (kv.type.group > 0 && shapes[s].head_dim % kv.type.group != 0) continue;
      KernelCaseId c;
      c.kernel = kv.name;
      c.shape_name = o.shapes[s];
      c.shape = shapes[s];
      c.kv = kv.type;
      for (int context : kContexts) {
        c.product = strf("decode@%d", context);
        c.decode = context;
        c.ms = within(ms, 1, kMostDecodes);
        add(c);
      }
      c.product = "prefill";
      c.decode = 0;
      c.ms = within(ms, kLeastPrompt, ms.back());
      add(c);
    }
  }
  if (auto ok = check_names(o, cases); !ok) return ok.error();
  return cases;
}

std::vector<StepTime> step_times(const std::vector<KernelCaseId>& cases,
                                 const std::vector<KernelTiming>& rows) {
  constexpr int kProducts = 5;
  if (cases.size() != kProducts) return {};
  auto find = [&](const std::string& key) -> const KernelTiming* {
    auto at = std::ranges::find_if(rows, [&](const KernelTiming& t) { return t.key() == key; });
    return at == rows.end() ? nullptr : &*at;
  };
  std::vector<StepTime> steps;
  for (int m : cases[0].ms) {
    StepTime step{m, 0, 0};
    bool whole = true;
    for (const KernelCaseId& c : cases) {
      bool prompt = c.product == "lm_head" && m > kMostLogits;
      const KernelTiming* t = find(c.key(prompt ? 1 : m));
      if (!t) {
        whole = false;
        break;
      }
      step.seconds += c.times * t->best;
      step.limit += c.times * t->best * t->of_limit;
    }
    if (whole) steps.push_back(step);
  }
  return steps;
}

}  // namespace sluice
