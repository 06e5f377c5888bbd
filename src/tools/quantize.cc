// sluice quantize: a model file in another format. One batch of rows is in memory at a time.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>

#include "base/json.h"
#include "base/str.h"
#include "base/thread_pool.h"
#include "load/open.h"
#include "tensor/formats/all.h"
#include "tensor/gguf_writer.h"
#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/locate_model.h"
#include "tools/quantize_plan.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr size_t kBatchBytes = size_t{8} << 20;  // of encoded rows between two writes
constexpr int64_t kUnitElems = 1 << 15;          // what a worker takes at a time, about
constexpr int kExitInterrupted = 130;

// What became of the tensors that got one format.
struct FormatTotals {
  size_t num_tensors = 0;
  uint64_t before = 0, after = 0, elems = 0;
  double error = 0, power = 0;  // sums of squares

  double rmse() const { return power > 0 ? std::sqrt(error / power) : 0; }
};

// A share of a batch's rows and what its worker found.
struct Unit {
  int64_t begin = 0, end = 0;  // rows
  double error = 0, power = 0;
  enum class Fault { none, not_finite, too_large } fault = Fault::none;
};

struct Scratch {
  std::vector<float> in, out;
};

// One tensor's rows from its source format to its target's.
class Transcoder {
 public:
  Transcoder(ThreadPool& pool, const PlannedTensor& t, std::span<const std::byte> source)
      : pool_(pool),
        t_(t),
        source_(source),
        from_(format_info(t.source->format)),
        to_(format_info(t.target.format)),
        from_row_(row_bytes(from_.format, t.target.cols)),
        to_row_(row_bytes(to_.format, t.target.cols)),
        scratch_(static_cast<size_t>(pool.size())) {}

  int64_t batch_rows() const {
    const auto rows = static_cast<int64_t>(kBatchBytes / std::max<size_t>(to_row_, 1));
    return std::clamp<int64_t>(rows, 1, t_.target.rows);
  }

  // Rows [begin, end) into `out`; adds to the totals.
  Result<void> run(int64_t begin, int64_t end, std::vector<std::byte>& out, FormatTotals& totals) {
    out.resize(static_cast<size_t>(end - begin) * to_row_);
    const int64_t rows = std::max<int64_t>(kUnitElems / t_.target.cols, 1);
    std::vector<Unit> units;
    for (int64_t r = begin; r < end; r += rows) {
      Unit u;
      u.begin = r;
      u.end = std::min(r + rows, end);
      units.push_back(u);
    }
    pool_.for_each(static_cast<int64_t>(units.size()), [&](int64_t i, int worker) {
      Unit& u = units[static_cast<size_t>(i)];
      convert(u, out.data() + static_cast<size_t>(u.begin - begin) * to_row_,
              scratch_[static_cast<size_t>(worker)]);
    });
    for (const Unit& u : units) {  // in order: the sums do not depend on the threads
      if (u.fault != Unit::Fault::none) return error_of(u.fault);
      totals.error += u.error;
      totals.power += u.power;
    }
    return {};
  }

 private:
  void convert(Unit& u, std::byte* out, Scratch& s) const {
    const int64_t cols = t_.target.cols;
    const int64_t n = (u.end - u.begin) * cols;
    s.in.resize(static_cast<size_t>(n));
    s.out.resize(static_cast<size_t>(n));
    const std::byte* in = source_.data() + static_cast<size_t>(u.begin) * from_row_;
    from_.decode(in, s.in.data(), n);
    for (float x : s.in) {
      u.power += static_cast<double>(x) * x;
      if (!std::isfinite(x)) u.fault = Unit::Fault::not_finite;
    }
    if (u.fault != Unit::Fault::none) return;
    if (from_.format == to_.format) {
      std::copy_n(in, static_cast<size_t>(u.end - u.begin) * to_row_, out);
      return;
    }
    to_.encode(s.in.data(), out, n);
    to_.decode(out, s.out.data(), n);
    for (size_t i = 0; i < s.in.size(); ++i) {
      const double off = static_cast<double>(s.out[i]) - s.in[i];
      u.error += off * off;
    }
    if (!std::isfinite(u.error)) u.fault = Unit::Fault::too_large;
  }

  Error error_of(Unit::Fault fault) const {
    const std::string name = quote(t_.source->name);
    if (fault == Unit::Fault::not_finite) {
      return {400, strf("tensor %s holds values that are not finite (NaN or infinity): the model "
                        "is damaged, fetch it again",
                        name.c_str())};
    }
    return {400, strf("tensor %s holds values too large for %s: use --type bf16", name.c_str(),
                      to_.name)};
  }

  ThreadPool& pool_;
  const PlannedTensor& t_;
  std::span<const std::byte> source_;
  const FormatInfo &from_, &to_;
  size_t from_row_, to_row_;
  std::vector<Scratch> scratch_;
};

struct Outcome {
  std::map<Format, FormatTotals> by_format;
  FormatTotals all;
  double seconds = 0;
};

Result<Outcome> transcode(Checkpoint& model,
                          const std::vector<PlannedTensor>& plan,
                          GgufWriter& writer,
                          const QuantizeOptions& o) {
  auto begin = std::chrono::steady_clock::now();
  auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  ThreadPool pool(o.threads, false);
  StatusLine status(!o.quiet);
  CatchInterrupt interrupt;
  uint64_t total = 0, done = 0;
  for (const PlannedTensor& p : plan) total += p.source->bytes;
  Outcome outcome;
  std::vector<std::byte> batch;
  for (const PlannedTensor& p : plan) {
    FormatTotals& totals = outcome.by_format[p.target.format];
    Transcoder transcoder(pool, p, model.data(*p.source));
    const int64_t step = transcoder.batch_rows();
    for (int64_t r = 0; r < p.target.rows; r += step) {
      if (interrupt.seen()) return Error{499, "interrupted: nothing was written"};
      double fraction = static_cast<double>(done) + static_cast<double>(p.source->bytes) *
                                                        static_cast<double>(r) /
                                                        static_cast<double>(p.target.rows);
      fraction = total > 0 ? fraction / static_cast<double>(total) : 1;
      status.show(strf("%s %3.0f%% %s to %s, %.0f MB/s", progress_bar(fraction).c_str(),
                       fraction * 100, quote(p.target.name).c_str(),
                       format_info(p.target.format).name,
                       fraction * static_cast<double>(total) / 1e6 / std::max(elapsed(), 1e-3)));
      const int64_t end = std::min(r + step, p.target.rows);
      if (auto ok = transcoder.run(r, end, batch, totals); !ok) return ok.error();
      if (auto ok = writer.append(batch); !ok) return ok.error();
    }
    model.release(*p.source);
    done += p.source->bytes;
    for (FormatTotals* t : {&totals, &outcome.all}) {
      ++t->num_tensors;
      t->before += p.source->bytes;
      t->after += p.target.bytes;
      t->elems += static_cast<uint64_t>(p.target.rows) * static_cast<uint64_t>(p.target.cols);
    }
  }
  status.show("writing to disk", true);
  if (auto ok = writer.finish(); !ok) return ok.error();
  for (const auto& [format, t] : outcome.by_format) {
    outcome.all.error += t.error;
    outcome.all.power += t.power;
  }
  outcome.seconds = elapsed();
  return outcome;
}

double bits_per_weight(const FormatTotals& t) {
  return t.elems > 0 ? 8.0 * static_cast<double>(t.after) / static_cast<double>(t.elems) : 0;
}

void print_row(const char* name, const FormatTotals& t) {
  std::printf("%-7s %8zu %10s %10s %12.2f   %10.5f\n", name, t.num_tensors,
              human_bytes(t.before).c_str(), human_bytes(t.after).c_str(), bits_per_weight(t),
              t.rmse());
}

// Fallbacks grouped: "Q4_K to Q5_0: 180 tensors whose rows are no multiple of 256".
std::map<std::pair<Format, Format>, size_t> fallbacks(const std::vector<PlannedTensor>& plan) {
  std::map<std::pair<Format, Format>, size_t> groups;
  for (const PlannedTensor& p : plan) {
    if (p.fell_back) ++groups[{p.wanted, p.target.format}];
  }
  return groups;
}

void print_table(const std::vector<PlannedTensor>& plan, const Outcome& outcome) {
  std::printf("format   tensors     before      after  bits/weight   rel. RMSE\n");
  for (const auto& [format, t] : outcome.by_format) print_row(format_info(format).name, t);
  if (outcome.by_format.size() > 1) print_row("all", outcome.all);
  for (const auto& [formats, num] : fallbacks(plan)) {
    const auto& [wanted, got] = formats;
    std::printf("%s instead of %s: %zu tensor%s with rows that are no multiple of %d\n",
                format_info(got).name, format_info(wanted).name, num, num == 1 ? "" : "s",
                format_info(wanted).block_elems);
  }
}

json::object totals_json(const FormatTotals& t) {
  return {{"tensors", t.num_tensors},
          {"elements", t.elems},
          {"bytes_before", t.before},
          {"bytes_after", t.after},
          {"bits_per_weight", bits_per_weight(t)},
          {"relative_rmse", t.rmse()}};
}

void print_json(const QuantizeOptions& o,
                const std::vector<PlannedTensor>& plan,
                const Outcome& outcome,
                uint64_t file_bytes) {
  json::object out = totals_json(outcome.all);
  out["out"] = o.out;
  out["type"] = o.type;
  out["file_bytes"] = file_bytes;
  out["seconds"] = outcome.seconds;
  json::array formats, fell_back;
  for (const auto& [format, t] : outcome.by_format) {
    json::object row = totals_json(t);
    row["format"] = format_info(format).name;
    formats.push_back(std::move(row));
  }
  for (const PlannedTensor& p : plan) {
    if (!p.fell_back) continue;
    fell_back.push_back(json::object{{"tensor", p.target.name},
                                     {"columns", p.target.cols},
                                     {"wanted", format_info(p.wanted).name},
                                     {"format", format_info(p.target.format).name}});
  }
  out["formats"] = std::move(formats);
  out["fallbacks"] = std::move(fell_back);
  std::printf("%s\n", plain_json(out).c_str());
}

// The output must not replace the model that is being read, or a part of it.
Result<void> check_paths(const QuantizeOptions& o,
                         const std::string& path,
                         const Checkpoint& model) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (o.out.empty()) return Error{400, "no output file given"};
  const fs::path in = path == "smollm2" ? default_model_path() : path;
  const fs::path out = o.out;
  if (!fs::exists(out, ec)) return {};
  if (fs::equivalent(in, out, ec))
    return Error{400, "input and output are the same file: name another output"};
  const bool parts =
      fs::is_directory(in, ec) || model.meta().integer("split.count").value_or(1) > 1;
  const fs::path folder = fs::is_directory(in, ec) ? in : fs::absolute(in, ec).parent_path();
  if (parts && !fs::is_directory(out, ec) &&
      fs::equivalent(folder, fs::absolute(out, ec).parent_path(), ec)) {
    return Error{400, strf("%s exists beside the model's own parts: name another output",
                           quote(o.out, 400).c_str())};
  }
  return {};
}

Result<void> check_model(const Checkpoint& model) {
  if (model.tensors().empty())
    return Error{400, "the model has no tensors (a vocabulary only): there is nothing to quantize"};
  const std::string* architecture = model.meta().string("general.architecture");
  if (!architecture) return Error{400, "general.architecture is missing: the model is damaged"};
  if (model.meta().integer(*architecture + ".expert_count").value_or(0) > 0)
    return Error{400, "mixtures of experts are not supported"};
  return {};
}

// Formats that have lost something already.
std::string lossy_sources(const std::vector<PlannedTensor>& plan) {
  std::map<Format, size_t> found;
  for (const PlannedTensor& p : plan) {
    if (format_info(p.source->format).block_elems > 1 && p.source->format != p.target.format)
      ++found[p.source->format];
  }
  std::string names;
  for (const auto& [format, num] : found)
    names += (names.empty() ? "" : ", ") + std::string(format_info(format).name);
  return names;
}

Result<QuantizeRules> rules_from(const QuantizeOptions& o) {
  QuantizeRules rules;
  const FormatInfo* type = find_format(o.type);
  if (!type) return Error{400, strf("unknown --type %s", quote(o.type).c_str())};
  rules.type = type->format;
  rules.keep_embedding = o.keep_embedding;
  if (!o.output_type.empty()) {
    const FormatInfo* output = find_format(o.output_type);
    if (!output) return Error{400, strf("unknown --output-type %s", quote(o.output_type).c_str())};
    rules.output_type = output->format;
  }
  return rules;
}

}  // namespace

int cmd_quantize(const QuantizeOptions& o) {
  Result<QuantizeRules> rules = rules_from(o);
  if (!rules) return report(rules.error());
  Result<std::string> path = locate_model(o.in, o.quiet);
  if (!path) return report(path.error());
  Result<std::unique_ptr<Checkpoint>> model = open_model(*path, "f16", 1);
  if (!model) return report(model.error());
  if (auto ok = check_paths(o, *path, **model); !ok) return report(ok.error());
  if (auto ok = check_model(**model); !ok) return report(ok.error());
  const std::vector<PlannedTensor> plan = plan_formats((*model)->tensors(), *rules);
  std::vector<TensorInfo> targets;
  for (const PlannedTensor& p : plan) targets.push_back(p.target);
  Result<GgufWriter> writer = GgufWriter::create(
      o.out, quantized_meta((*model)->meta(), rules->type), targets, o.overwrite);
  if (!writer) return report(writer.error());
  if (std::string lossy = lossy_sources(plan); !lossy.empty() && !o.quiet) {
    std::fprintf(stderr, "%s\n",
                 dim(strf("the source is quantised already (%s): what it lost stays lost; a "
                          "BF16 or F16 source gives a better result",
                          lossy.c_str()))
                     .c_str());
  }
  Result<Outcome> outcome = transcode(**model, plan, *writer, o);
  if (!outcome) {
    report(outcome.error());
    if (outcome.error().code == 499) return kExitInterrupted;
    return outcome.error().code == 500 ? kExitFailure : kExitUsage;
  }
  if (o.json) {
    print_json(o, plan, *outcome, writer->size());
  } else {
    print_table(plan, *outcome);
    std::printf("%s: %s in %.1f s\n", o.out.c_str(), human_bytes(writer->size()).c_str(),
                outcome->seconds);
  }
  return kExitOk;
}

}  // namespace sluice
