// Logits of tiny random models against transformers' fp32 (tests/golden/models), and the paged,
// chunked forward pass against a pass without any cache: every position from scratch.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/json.h"
#include "exec/kv_cache.h"
#include "model/model.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::string name;
  std::vector<int32_t> tokens;
  int64_t positions = 0, vocab = 0;
  std::vector<float> logits;
};

std::string golden_dir() { return SLUICE_SOURCE_DIR "/tests/golden/models/"; }

Golden read_golden(const std::string& name) {
  std::ifstream in(golden_dir() + name + ".json");
  std::stringstream text;
  text << in.rdbuf();
  json::value v = parse_json(text.str()).value();
  Golden g;
  g.name = name;
  for (const json::value& t : v.at("tokens").as_array())
    g.tokens.push_back(static_cast<int32_t>(t.as_int64()));
  g.positions = v.at("shape").as_array()[0].as_int64();
  g.vocab = v.at("shape").as_array()[1].as_int64();
  g.logits.resize(static_cast<size_t>(g.positions * g.vocab));
  std::ifstream raw(golden_dir() + name + ".f32", std::ios::binary);
  raw.read(reinterpret_cast<char*>(g.logits.data()),
           static_cast<std::streamsize>(g.logits.size() * 4));
  EXPECT_TRUE(raw.good());
  return g;
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(golden_dir())) {
    if (e.path().extension() == ".gguf") names.push_back(e.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Feeds tokens in chunks of `chunk`, reading logits of every position.
std::vector<float> run_model(Backend& be, Model& m, const Golden& g, int chunk, DType kv_type) {
  constexpr int kBlock = 8;
  int n = static_cast<int>(g.tokens.size());
  KvCache cache(be, m.shape(), kv_type, n / kBlock + 2, kBlock);
  std::vector<int32_t> table;
  for (int b = n / kBlock + 1; b > 0; --b) table.push_back(b);  // blocks in no particular order
  m.reserve(be, n, n);
  std::vector<float> out(static_cast<size_t>(n) * static_cast<size_t>(m.shape().vocab));
  std::vector<int32_t> positions, slots(static_cast<size_t>(n)), rows;
  for (int i = 0; i < n; ++i) positions.push_back(i), rows.push_back(i);
  for (int at = 0; at < n; at += chunk) {
    int count = std::min(chunk, n - at);
    SliceView slice{0, count, at, 0};
    BatchView b;
    b.num_tokens = count;
    b.num_decode = count == 1 ? 1 : 0;
    b.tokens = g.tokens.data() + at;
    b.positions = positions.data() + at;
    b.row_slot = slots.data();
    b.slices = {&slice, 1};
    b.tables = table.data();
    b.table_stride = static_cast<int64_t>(table.size());
    m.forward(be, b, cache.layers());
    auto vocab = static_cast<int64_t>(m.shape().vocab);
    Tensor t{out.data() + at * vocab, DType::f32, count, vocab, vocab};
    m.logits(be, {rows.data(), static_cast<size_t>(count)}, t);
  }
  return out;
}

double relative_error(const std::vector<float>& ours, const std::vector<float>& golden) {
  double diff = 0, scale = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    if (!std::isfinite(ours[i])) return INFINITY;
    diff = std::max(diff, std::abs(static_cast<double>(ours[i]) - golden[i]));
    scale = std::max(scale, std::abs(static_cast<double>(golden[i])));
  }
  return diff / scale;
}

std::unique_ptr<Model> load_golden(Backend& be, const std::string& name, bool fuse) {
  auto file = open_gguf(golden_dir() + name + ".gguf");
  EXPECT_TRUE(file) << file.error().message;
  static std::vector<std::unique_ptr<Checkpoint>> alive;  // weights may point into the file
  alive.push_back(std::move(*file));
  LoadOptions options;
  options.fuse = fuse;
  auto m = load_model(*alive.back(), be, options);
  EXPECT_TRUE(m) << m.error().message;
  return std::move(*m);
}

class ModelGolden : public testing::TestWithParam<std::string> {};

TEST_P(ModelGolden, RefEqualsTransformers) {
  Golden g = read_golden(GetParam());
  auto be = make_ref_backend();
  auto m = load_golden(*be, g.name, true);
  EXPECT_LT(
      relative_error(run_model(*be, *m, g, static_cast<int>(g.positions), DType::f32), g.logits),
      1e-4);
}

TEST_P(ModelGolden, CpuEqualsTransformersWholeChunkedAndOneByOne) {
  Golden g = read_golden(GetParam());
  auto be = make_cpu_backend({.threads = 2});
  auto m = load_golden(*be, g.name, true);
  std::vector<float> whole = run_model(*be, *m, g, static_cast<int>(g.positions), DType::f32);
  EXPECT_LT(relative_error(whole, g.logits), 1e-4);
  EXPECT_EQ(run_model(*be, *m, g, 7, DType::f32), whole);
  EXPECT_EQ(run_model(*be, *m, g, 1, DType::f32), whole);
}

TEST_P(ModelGolden, UnfusedWeightsGiveTheSameBits) {
  Golden g = read_golden(GetParam());
  auto be = make_cpu_backend({.threads = 1});
  auto fused = load_golden(*be, g.name, true), apart = load_golden(*be, g.name, false);
  EXPECT_EQ(run_model(*be, *fused, g, 9, DType::f16), run_model(*be, *apart, g, 9, DType::f16));
}

// The oracle of A1: no cache at all. Every prefix is run whole, in a fresh cache.
TEST_P(ModelGolden, CacheEqualsNoCache) {
  Golden g = read_golden(GetParam());
  auto be = make_ref_backend();
  auto m = load_golden(*be, g.name, true);
  std::vector<float> cached = run_model(*be, *m, g, 1, DType::f32);
  auto vocab = static_cast<size_t>(g.vocab);
  for (size_t n : {size_t{1}, size_t{13}, g.tokens.size()}) {
    Golden prefix = g;
    prefix.tokens.resize(n);
    std::vector<float> whole = run_model(*be, *m, prefix, static_cast<int>(n), DType::f32);
    std::vector<float> last(whole.end() - static_cast<ptrdiff_t>(vocab), whole.end());
    std::vector<float> same(cached.begin() + static_cast<ptrdiff_t>((n - 1) * vocab),
                            cached.begin() + static_cast<ptrdiff_t>(n * vocab));
    EXPECT_LT(relative_error(same, last), 1e-6);
  }
}

// A file with one tensor hidden.
class Hiding final : public Checkpoint {
 public:
  Hiding(Checkpoint& file, const std::string& name) : file_(file) {
    meta_ = file.meta();
    for (const TensorInfo& t : file.tensors()) {
      if (t.name == name) continue;
      index_[t.name] = tensors_.size();
      tensors_.push_back(t);
    }
  }
  std::span<const std::byte> data(const TensorInfo& tensor) override { return file_.data(tensor); }
  void release(const TensorInfo&) override {}

 private:
  Checkpoint& file_;
};

TEST_P(ModelGolden, EveryTensorIsNeededAndMissedByName) {
  auto file = open_gguf(golden_dir() + GetParam() + ".gguf");
  ASSERT_TRUE(file) << file.error().message;
  auto be = make_ref_backend();
  for (const TensorInfo& t : (*file)->tensors()) {
    // Without the first the embeddings are the output matrix, without the second nothing is scaled,
    // and the third is for shorter contexts.
    if (t.name == "output.weight" || t.name == "rope_freqs.weight" ||
        t.name == "rope_factors_short.weight")
      continue;
    Hiding hiding(**file, t.name);
    auto m = load_model(hiding, *be, {});
    ASSERT_FALSE(m) << "loads without " << t.name;
    EXPECT_NE(m.error().message.find(t.name), std::string::npos) << m.error().message;
  }
}

// A file whose matrices are Q8_0 where their rows are whole blocks.
class AsQ8 final : public Checkpoint {
 public:
  explicit AsQ8(Checkpoint& file) {
    meta_ = file.meta();
    const FormatInfo& q8 = format_info(Format::q8_0);
    for (TensorInfo t : file.tensors()) {
      auto from = file.data(t);
      std::vector<std::byte> bytes(from.begin(), from.end());
      if (t.rows > 1 && t.cols % kActBlock == 0) {
        t.format = Format::q8_0;
        t.bytes = static_cast<size_t>(t.rows) * row_bytes(t.format, t.cols);
        std::vector<float> values(static_cast<size_t>(t.rows * t.cols));
        std::memcpy(values.data(), from.data(), from.size());
        bytes.resize(t.bytes);
        q8.encode(values.data(), bytes.data(), t.rows * t.cols);
      }
      index_[t.name] = tensors_.size();
      tensors_.push_back(t);
      bytes_.push_back(std::move(bytes));
    }
  }
  std::span<const std::byte> data(const TensorInfo& tensor) override {
    return bytes_[index_.find(tensor.name)->second];
  }
  void release(const TensorInfo&) override {}

 private:
  std::vector<std::vector<std::byte>> bytes_;
};

// Activations in their quantised form: the oracle keeps them in f32, so the two differ by rounding,
// which sharp attention over random weights makes large. A form not written would be as far off as
// another model.
TEST_P(ModelGolden, QuantisedActivationsStayNearTheOracle) {
  Golden g = read_golden(GetParam());
  auto file = open_gguf(golden_dir() + g.name + ".gguf");
  ASSERT_TRUE(file) << file.error().message;
  AsQ8 q8(**file);
  auto ref = make_ref_backend(), cpu = make_cpu_backend({.threads = 2, .pin = false});
  auto oracle = load_model(q8, *ref, {}), model = load_model(q8, *cpu, {});
  ASSERT_TRUE(oracle && model);
  std::vector<float> want = run_model(*ref, **oracle, g, 40, DType::f32);
  std::vector<float> whole = run_model(*cpu, **model, g, 40, DType::f16);
  double squares = 0, diff = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += static_cast<double>(want[i]) * want[i];
    diff += std::pow(static_cast<double>(whole[i]) - want[i], 2);
  }
  EXPECT_LT(std::sqrt(diff / squares), 0.1);
  EXPECT_EQ(run_model(*cpu, **model, g, 7, DType::f16), whole);
  EXPECT_EQ(run_model(*cpu, **model, g, 1, DType::f16), whole);
}

TEST_P(ModelGolden, TheShapeIsKnownFromTheHeaders) {
  auto be = make_ref_backend();
  auto m = load_golden(*be, GetParam(), true);
  auto file = open_gguf(golden_dir() + GetParam() + ".gguf");
  ASSERT_TRUE(file) << file.error().message;
  auto shape = read_shape(**file);
  ASSERT_TRUE(shape) << shape.error().message;
  EXPECT_EQ(shape->windows, m->shape().windows);
  EXPECT_EQ(shape->windows.size(), static_cast<size_t>(shape->num_layers));
  EXPECT_EQ(shape->ffn, m->shape().ffn);
  EXPECT_EQ(shape->kv_bytes_per_token(DType::f16), m->shape().kv_bytes_per_token(DType::f16));
}

INSTANTIATE_TEST_SUITE_P(All, ModelGolden, testing::ValuesIn(golden_names()), [](const auto& test) {
  std::string s = test.param;
  std::replace(s.begin(), s.end(), '-', '_');
  return s;
});

}  // namespace
}  // namespace sluice
