#include "tools/gpu_floor.h"

#include <algorithm>
#include <string_view>

#include "base/str.h"

namespace sluice {

GpuFloor GpuFloor::at(double bytes_per_s) const {
  GpuFloor f = *this;
  f.bandwidth = bytes_per_s;
  return f;
}

bool GpuFloor::in_8_bits(const Product& p) const {
  return dtype_bytes(weights) == 1 && std::string_view(p.name) != "lm_head";
}

double GpuFloor::rate(const Product& p) const {
  const double rate8 = weights == DType::i8 ? limits.gemm_i8 : limits.gemm_f8;
  return in_8_bits(p) && rate8 > 0 ? rate8 : limits.gemm;
}

double GpuFloor::product(const Product& p, double n) const {
  auto elems = static_cast<double>(p.rows) * static_cast<double>(p.cols);
  return std::max(elems * (in_8_bits(p) ? 1 : 2) / bandwidth, elems * 2 * n / rate(p));
}

double GpuFloor::decode(double n, double context) const {
  double t = attention(n * context);
  for (const Product& p : products(*shape)) t += product(p, n) * p.times;
  return t;
}

// Attention computes in the activations' type whatever the weights'.
double GpuFloor::prefill(int prompts, int length) const {
  const ModelShape& m = *shape;
  double t = 0, pairs = 0.5 * length * (length + 1.0);
  for (const Product& p : products(m)) {
    if (std::string_view(p.name) == "lm_head") continue;
    t += 2.0 * static_cast<double>(p.rows * p.cols) * p.times * prompts * length / rate(p);
  }
  return t + 4.0 * prompts * pairs * m.num_heads * m.head_dim * m.num_layers / limits.gemm;
}

namespace {

// All products with an op's shape: they cannot be told apart.
void name_product(OpRow& row, const OpProfile& op, const GpuFloor& floor, int batch) {
  row.name.clear();
  for (const Product& p : products(*floor.shape)) {
    if (p.rows != op.rows || p.cols != op.cols) continue;
    row.name += (row.name.empty() ? "" : "+") + std::string(p.name);
    row.floor += floor.product(p, batch) * p.times;
  }
  if (row.name.empty())
    row.name =
        strf("%lld x %lld", static_cast<long long>(op.rows), static_cast<long long>(op.cols));
}

}  // namespace

std::vector<OpRow> op_rows(const StepProfile& profile,
                           const GpuFloor& floor,
                           int batch,
                           double context) {
  std::vector<OpRow> rows;
  for (const OpProfile& op : profile.ops) {
    OpRow r;
    r.name = op.op;
    r.kernels = op.kernels;
    r.calls = op.calls;
    r.alone = op.alone;
    r.seconds = profile.step > 0 ? op.in_step : op.alone;
    r.boundary = op.boundary;
    if (op.op == "matmul") name_product(r, op, floor, batch);
    if (op.op == "attention") r.floor = floor.attention(batch * context);
    rows.push_back(std::move(r));
  }
  std::ranges::stable_sort(rows, [](const OpRow& a, const OpRow& b) { return a.gap() > b.gap(); });
  return rows;
}

}  // namespace sluice
