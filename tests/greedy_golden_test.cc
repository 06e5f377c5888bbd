// Greedy text to the character: small trained models against the texts their authors' own program
// gives (shared data), and the tiny random models against transformers' greedy tokens.
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/test_slice.h"
#include "runtime/collect.h"
#include "runtime/session.h"
#include "text/detokenizer.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string data_dir() {
  const char* env = std::getenv("SLUICE_TEST_DATA");
  return env && *env ? env : SLUICE_SOURCE_DIR "/../shared/data";
}

json::value read_json(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  Result<json::value> v = parse_json(text.str());
  EXPECT_TRUE(v) << path << ": " << v.error().message;
  return v ? *v : json::value{};
}

std::unique_ptr<Session> open(const std::string& path, const std::string& kv, int threads) {
  EngineOptions o;
  o.model = path;
  o.kv_type = value_named(kKvTypes, kv).value();
  o.threads = threads;
  o.pin = false;
  o.quiet = true;
  o.kv_bytes = 32 << 20;
  auto s = Session::open(o);
  EXPECT_TRUE(s) << s.error().message;
  return std::move(*s);
}

Request greedy(std::vector<Token> prompt, int max_new) {
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = 0;
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(std::move(prompt));
  r.sampling = std::move(spec);
  r.max_new = max_new;
  return r;
}

struct Setup {
  const char* kv;
  int threads;
};
constexpr Setup kSetups[] = {{"f16", 1}, {"f16", 2}, {"f32", 1}, {"f32", 2}};

// `n` counts tokens after BOS: those of the prompt and those generated.
void check_stories(const std::string& name, const std::string& file) {
  std::string dir = data_dir() + "/models/", golden = dir + "golden_greedy.json";
  if (!fs::exists(golden) || !fs::exists(dir + file)) {
    GTEST_SKIP() << "no " << dir + file << " or golden_greedy.json: set SLUICE_TEST_DATA";
  }
  json::value all = read_json(golden);
  const json::array& cases = all.at(name).as_array();
  ASSERT_FALSE(cases.empty());
  TestSlice slice;
  for (const Setup& setup : kSetups) {
    if (!slice.take()) continue;
    auto s = open(dir + file, setup.kv, setup.threads);
    const Tokenizer& t = *s->tokenizer();
    Collector c(s->engine(), &t);
    for (const json::value& v : cases) {
      std::string prompt(v.at("prompt").as_string());
      std::vector<Token> ids = t.encode(prompt, {.add_special = true}).value();
      int max_new = static_cast<int>(v.at("n").as_int64()) + 1 - static_cast<int>(ids.size());
      Request r = greedy(std::move(ids), max_new);
      r.stop.tokens.assign(t.eog().begin(), t.eog().end());
      c.submit(std::move(r), {.strip_leading_space = prompt.empty() && t.adds_space()});
    }
    c.wait();
    for (size_t i = 0; i < cases.size(); ++i) {
      const RequestOutput& out = c.outputs()[i];
      ASSERT_FALSE(out.refused) << out.refused->message;
      EXPECT_EQ(std::string(cases[i].at("prompt").as_string()) + out.choices[0].text,
                std::string(cases[i].at("text").as_string()))
          << name << ", KV " << setup.kv << ", threads " << setup.threads;
    }
  }
}

TEST(GreedyGolden, Stories260K) { check_stories("stories260K", "stories260K-f32.gguf"); }
TEST(GreedyGolden, Stories15M) { check_stories("stories15M", "stories15M-f16.gguf"); }

// KV in f32: the goldens' closest decisions (greedy_lead) are too close for f16's rounding.
TEST(GreedyGolden, TinyModelsGoOnAsInTransformers) {
  std::string dir = SLUICE_SOURCE_DIR "/tests/golden/models/";
  size_t num = 0;
  for (const auto& e : fs::directory_iterator(dir)) {
    if (e.path().extension() != ".gguf") continue;
    SCOPED_TRACE(e.path().stem());
    ++num;
    json::value v = read_json(dir + e.path().stem().string() + ".json");
    auto ids = [&](const char* key) {
      std::vector<Token> out;
      for (const json::value& t : v.at(key).as_array())
        out.push_back(static_cast<Token>(t.as_int64()));
      return out;
    };
    std::vector<Token> expected = ids("greedy");
    auto s = open(e.path(), "f32", 1);
    Collector c(s->engine(), s->tokenizer());
    c.submit(greedy(ids("tokens"), static_cast<int>(expected.size())));
    c.wait();
    const ChoiceOutput& out = c.outputs()[0].choices[0];
    EXPECT_EQ(out.tokens, expected);
    EXPECT_EQ(out.text, detokenize(*s->tokenizer(), expected));
  }
  EXPECT_GE(num, 7u);
}

}  // namespace
}  // namespace sluice
