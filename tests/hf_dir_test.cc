// Models from Hugging Face directories: every tensor equals the one of the same model's GGUF file,
// logits equal transformers' fp32 (tests/golden), whole, sharded, in halves, and from quantised
// checkpoints.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"
#include "base/json.h"
#include "exec/kv_cache.h"
#include "load/hf_directory.h"
#include "load/hf_tensors.h"
#include "load/open.h"
#include "model/model.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"
#include "tensor/mapped_file.h"
#include "tensor/safetensors.h"
#include "tensor/safetensors_builder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string golden_dir() { return SLUICE_SOURCE_DIR "/tests/golden/"; }

std::string read_all(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};

// `stem`: the path of NAME.json and NAME.f32 without their ends.
Golden read_golden(const std::string& stem) {
  const json::value v = parse_json(read_all(stem + ".json")).value();
  Golden g;
  for (const json::value& t : v.at("tokens").as_array()) {
    g.tokens.push_back(static_cast<int32_t>(t.as_int64()));
  }
  const std::string raw = read_all(stem + ".f32");
  g.logits.resize(raw.size() / 4);
  std::memcpy(g.logits.data(), raw.data(), raw.size());
  EXPECT_EQ(static_cast<int64_t>(g.logits.size()),
            v.at("shape").as_array()[0].as_int64() * v.at("shape").as_array()[1].as_int64());
  return g;
}

// Logits of every position, in one step.
std::vector<float> run_model(Backend& be, Model& m, const std::vector<int32_t>& tokens) {
  constexpr int kBlock = 8;
  const int n = static_cast<int>(tokens.size());
  KvCache cache(be, m.shape(), DType::f32, n / kBlock + 2, kBlock);
  std::vector<int32_t> table, positions, slots(tokens.size()), rows;
  for (int b = n / kBlock + 1; b > 0; --b) table.push_back(b);
  for (int i = 0; i < n; ++i) positions.push_back(i), rows.push_back(i);
  m.reserve(be, n, n);
  const SliceView slice{0, n, 0, 0};
  BatchView b;
  b.num_tokens = n;
  b.tokens = tokens.data();
  b.positions = positions.data();
  b.row_slot = slots.data();
  b.slices = {&slice, 1};
  b.tables = table.data();
  b.table_stride = static_cast<int64_t>(table.size());
  m.forward(be, b, cache.layers());
  const int64_t vocab = m.shape().vocab;
  std::vector<float> out(static_cast<size_t>(n * vocab));
  m.logits(be, rows, Tensor{out.data(), DType::f32, n, vocab, vocab});
  return out;
}

double relative_error(const std::vector<float>& ours, const std::vector<float>& golden) {
  if (ours.size() != golden.size()) return INFINITY;
  double diff = 0, scale = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    if (!std::isfinite(ours[i])) return INFINITY;
    diff = std::max(diff, std::abs(static_cast<double>(ours[i]) - golden[i]));
    scale = std::max(scale, std::abs(static_cast<double>(golden[i])));
  }
  return diff / scale;
}

// Opens with open_model, as a user's path is opened.
double logit_error(Backend& be, const std::string& directory, const Golden& g) {
  auto file = open_model(directory, "q8_0", 0);
  EXPECT_TRUE(file) << file.error().message;
  if (!file) return INFINITY;
  auto m = load_model(**file, be, {});
  EXPECT_TRUE(m) << m.error().message;
  return m ? relative_error(run_model(be, **m, g.tokens), g.logits) : INFINITY;
}

std::vector<float> decoded(Checkpoint& c, const TensorInfo& t) {
  std::vector<float> out(static_cast<size_t>(t.rows * t.cols));
  format_info(t.format).decode(c.data(t).data(), out.data(), t.rows * t.cols);
  c.release(t);
  return out;
}

// A directory of this test, gone at its end.
class TempDir {
 public:
  explicit TempDir(const std::string& name)
      : path_(fs::temp_directory_path() / ("sluice-" + name + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  fs::path path_;
};

// Directories that have their golden.
std::vector<std::string> names() {
  std::vector<std::string> found;
  for (const auto& e : fs::directory_iterator(golden_dir() + "hf")) {
    const std::string name = e.path().filename();
    if (fs::exists(golden_dir() + "models/" + name + ".gguf")) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

class HfDirectory : public testing::TestWithParam<std::string> {
 protected:
  std::string directory() const { return golden_dir() + "hf/" + GetParam(); }
  Golden golden() const { return read_golden(golden_dir() + "models/" + GetParam()); }
};

TEST_P(HfDirectory, TensorsEqualTheGgufFile) {
  auto hf = open_hf_directory(directory());
  ASSERT_TRUE(hf) << hf.error().message;
  auto gguf = open_gguf(golden_dir() + "models/" + GetParam() + ".gguf");
  ASSERT_TRUE(gguf) << gguf.error().message;
  EXPECT_EQ((*hf)->tensors().size(), (*gguf)->tensors().size());
  for (const TensorInfo& want : (*gguf)->tensors()) {
    const TensorInfo* got = (*hf)->find(want.name);
    ASSERT_TRUE(got) << want.name;
    EXPECT_EQ(got->rows, want.rows) << want.name;
    EXPECT_EQ(got->cols, want.cols) << want.name;
    EXPECT_EQ(decoded(**hf, *got), decoded(**gguf, want)) << want.name;
  }
  // The GGUF's hyperparameters are a subset: defaults need not be written.
  for (const auto& [key, value] : (*gguf)->meta().all()) {
    if (!key.starts_with((*gguf)->meta().string("general.architecture")->c_str())) continue;
    if (const auto number = (*gguf)->meta().number(key)) {
      ASSERT_TRUE((*hf)->meta().number(key)) << key;
      EXPECT_NEAR(*(*hf)->meta().number(key), *number, 1e-6 * std::abs(*number)) << key;
    } else if (const std::string* text = (*gguf)->meta().string(key)) {
      ASSERT_TRUE((*hf)->meta().string(key)) << key;
      EXPECT_EQ(*(*hf)->meta().string(key), *text) << key;
    }
  }
}

TEST_P(HfDirectory, LogitsEqualTransformers) {
  EXPECT_LT(logit_error(*make_ref_backend(), directory(), golden()), 1e-4);
  EXPECT_LT(logit_error(*make_cpu_backend({.threads = 2}), directory(), golden()), 1e-4);
}

// The tensors of a safetensors file, as bytes.
std::map<std::string, std::pair<SafetensorsEntry, std::string>> tensors_of(
    const std::string& path) {
  auto file = MappedFile::open(path);
  auto entries = parse_safetensors_header(file.value().bytes());
  std::map<std::string, std::pair<SafetensorsEntry, std::string>> out;
  for (const SafetensorsEntry& e : entries.value()) {
    const auto bytes = file->bytes().subspan(e.offset, e.bytes);
    out[e.name] = {e, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
  }
  return out;
}

TEST_P(HfDirectory, ShardsAreTheSameModel) {
  TempDir dir("shards");
  dir.write("config.json", read_all(directory() + "/config.json"));
  SafetensorsBuilder shards[3];
  json::object map;
  size_t i = 0;
  for (const auto& [name, tensor] : tensors_of(directory() + "/model.safetensors")) {
    const size_t s = i++ % 3;
    // An odd number of bytes in front: floats must not be read in place.
    if (shards[s].data.empty() && s == 1)
      shards[s].tensor("x.rotary_emb.inv_freq", "U8", {3}, "abc");
    shards[s].tensor(name, "F32", tensor.first.shape, tensor.second);
    map[name] = "model-" + std::to_string(s) + ".safetensors";
  }
  for (int s = 0; s < 3; ++s) {
    dir.write("model-" + std::to_string(s) + ".safetensors", shards[s].build());
  }
  dir.write("model.safetensors.index.json", json::serialize(json::object{{"weight_map", map}}));
  EXPECT_LT(logit_error(*make_ref_backend(), dir.path(), golden()), 1e-4);
}

// Weights cut to bf16: the same logits as the f32 model with weights so cut.
TEST_P(HfDirectory, BfloatsAreReadAsSuch) {
  TempDir halves("bf16"), floats("f32");
  SafetensorsBuilder half, whole;
  for (const auto& [name, tensor] : tensors_of(directory() + "/model.safetensors")) {
    std::string cut = tensor.second, upper;
    for (size_t b = 0; b < cut.size(); b += 4) {
      cut[b] = cut[b + 1] = 0;
      upper += cut.substr(b + 2, 2);
    }
    half.tensor(strip_prefix(name), "BF16", tensor.first.shape, upper);  // as some files have them
    whole.tensor(name, "F32", tensor.first.shape, cut);
  }
  halves.write("model.safetensors", half.build());
  floats.write("model.safetensors", whole.build());
  for (const TempDir* d : {&halves, &floats}) {
    d->write("config.json", read_all(directory() + "/config.json"));
  }
  auto be = make_ref_backend();
  auto file = open_hf_directory(floats.path());
  ASSERT_TRUE(file) << file.error().message;
  auto m = load_model(**file, *be, {});
  ASSERT_TRUE(m) << m.error().message;
  Golden g = golden();
  g.logits = run_model(*be, **m, g.tokens);
  EXPECT_LT(relative_error(g.logits, golden().logits), 0.2);
  EXPECT_LT(logit_error(*be, halves.path(), g), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(All, HfDirectory, testing::ValuesIn(names()), [](const auto& test) {
  std::string s = test.param;
  std::replace(s.begin(), s.end(), '-', '_');
  return s;
});

class Quantised : public testing::TestWithParam<std::string> {
 protected:
  std::string stem() const { return golden_dir() + "quant/" + GetParam(); }
  // What the matrices become.
  Format format() const {
    const json::value v = parse_json(read_all(stem() + ".json")).value();
    return find_format(std::string_view(v.at("format").as_string()))->format;
  }
};

// The row of the file that GGUF row r of llama's q and k comes from.
int64_t rotary_row(int64_t r, int64_t head) {
  const int64_t i = r % head;
  return r - i + (i % 2 ? head / 2 : 0) + i / 2;
}

const std::map<std::string, std::string> kProjections = {
    {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
    {"mlp.gate_proj", "ffn_gate"},  {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};

std::vector<float> floats_of(const std::pair<SafetensorsEntry, std::string>& tensor) {
  const auto& [entry, bytes] = tensor;
  const Format format = entry.type == SafetensorsType::f16    ? Format::f16
                        : entry.type == SafetensorsType::bf16 ? Format::bf16
                                                              : Format::f32;
  std::vector<float> out(bytes.size() / type_bytes(entry.type));
  format_info(format).decode(bytes.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

TEST_P(Quantised, WeightsEqualTheReferenceExactly) {
  auto file = open_hf_directory(stem());
  ASSERT_TRUE(file) << file.error().message;
  for (const auto& [hf, gguf] : kProjections) {
    EXPECT_EQ((*file)->find("blk.0." + gguf + ".weight")->format, format()) << gguf;
  }
  if (!fs::exists(stem() + ".weights.safetensors")) return;  // of these the logits alone
  const bool llama = *(*file)->meta().string("general.architecture") == "llama";
  const int64_t head =
      *(*file)->meta().integer(llama ? "llama.attention.key_length" : "qwen2.attention.key_length");
  const auto reference = tensors_of(stem() + ".weights.safetensors");
  for (const auto& [hf, gguf] : kProjections) {
    const TensorInfo* t = (*file)->find("blk.0." + gguf + ".weight");
    const std::vector<float> want = floats_of(reference.at("model.layers.0." + hf + ".weight"));
    const std::vector<float> got = decoded(**file, *t);
    ASSERT_EQ(want.size(), got.size());
    const bool moved = llama && (gguf == "attn_q" || gguf == "attn_k");
    for (int64_t r = 0; r < t->rows; ++r) {
      const int64_t from = moved ? rotary_row(r, head) : r;
      for (int64_t c = 0; c < t->cols; ++c) {
        ASSERT_EQ(got[static_cast<size_t>(r * t->cols + c)],
                  want[static_cast<size_t>(from * t->cols + c)])
            << gguf << " row " << r << " column " << c;
      }
    }
  }
}

TEST_P(Quantised, LogitsEqualTransformersOnTheDequantisedWeights) {
  const Golden g = read_golden(stem());
  EXPECT_LT(logit_error(*make_ref_backend(), stem(), g), 1e-4);
  // The kernels quantise activations to int8.
  EXPECT_LT(logit_error(*make_cpu_backend({.threads = 2}), stem(), g), 0.05);
}

std::vector<std::string> quantised_names() {
  std::vector<std::string> found;
  for (const auto& e : fs::directory_iterator(golden_dir() + "quant")) {
    if (e.is_directory()) found.push_back(e.path().filename());
  }
  std::sort(found.begin(), found.end());
  return found;
}

INSTANTIATE_TEST_SUITE_P(All,
                         Quantised,
                         testing::ValuesIn(quantised_names()),
                         [](const auto& test) {
                           std::string s = test.param;
                           std::replace(s.begin(), s.end(), '-', '_');
                           return s;
                         });

}  // namespace
}  // namespace sluice
