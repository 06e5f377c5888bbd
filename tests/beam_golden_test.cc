// Beam search on the tiny models against transformers' (scripts/make_beam_goldens.py): every answer
// token for token, alone and all searches of a model at once, beside sampled requests.
#include <fstream>
#include <map>
#include <sstream>

#include <gtest/gtest.h>

#include "base/json.h"
#include "runtime/collect.h"
#include "runtime/session.h"

namespace sluice {
namespace {

json::value goldens() {
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/golden/beams.json");
  std::stringstream text;
  text << in.rdbuf();
  return parse_json(text.str()).value();
}

template <typename T>
std::vector<T> list(const json::value& v) {
  std::vector<T> out;
  for (const json::value& x : v.as_array()) out.push_back(x.to_number<T>());
  return out;
}

Request search_of(const json::value& c) {
  Request r;
  r.prompt = std::make_shared<const std::vector<Token>>(list<Token>(c.at("prompt")));
  r.sampling = std::make_shared<SamplingSpec>();
  r.stop.tokens = list<Token>(c.at("end"));
  r.max_new = c.at("max_new").to_number<int>();
  r.n = c.at("width").to_number<int>();
  r.beams = BeamSpec{};
  r.beams->length_penalty = c.at("length_penalty").to_number<float>();
  const json::value& early = c.at("early_stopping");
  r.beams->end = early.is_string() ? BeamEnd::never
                 : early.as_bool() ? BeamEnd::first
                                   : BeamEnd::usual;
  return r;
}

Request sampled(const Request& like) {
  Request r = like;
  auto spec = std::make_shared<SamplingSpec>();
  spec->seed = 5;
  r.sampling = std::move(spec);
  r.beams.reset();
  return r;
}

std::unique_ptr<Session> open(const std::string& name, int threads) {
  EngineOptions o;
  o.model = SLUICE_SOURCE_DIR "/tests/golden/models/" + name + ".gguf";
  o.device = parse_device("cpu").value();
  o.kv_type = value_named(kKvTypes, "f32").value();
  o.threads = threads;
  o.pin = false;
  o.quiet = true;
  o.kv_bytes = 32 << 20;
  auto s = Session::open(o);
  EXPECT_TRUE(s) << s.error().message;
  return std::move(*s);
}

void expect_answers(const RequestOutput& out, const json::value& c) {
  ASSERT_FALSE(out.refused) << out.refused->message;
  const json::array& answers = c.at("answers").as_array();
  ASSERT_EQ(out.choices.size(), answers.size());
  auto end = list<Token>(c.at("end"));
  for (size_t k = 0; k < answers.size(); ++k) {
    auto tokens = list<Token>(answers[k]);
    bool ended = std::ranges::find(end, tokens.back()) != end.end();
    EXPECT_EQ(out.choices[k].finish, ended ? Finish::stop : Finish::length);
    EXPECT_EQ(out.choices[k].tokens, tokens) << "answer " << k << " of " << c;
  }
}

TEST(BeamGolden, AnswersAreThoseOfTransformers) {
  std::map<std::string, std::vector<json::value>> by_model;
  json::value all = goldens();
  for (const json::value& c : all.at("cases").as_array())
    by_model[std::string(c.at("model").as_string())].push_back(c);
  ASSERT_FALSE(by_model.empty());
  for (const auto& [name, cases] : by_model) {
    SCOPED_TRACE(name);
    {
      auto s = open(name, 1);
      for (const json::value& c : cases) {
        Collector alone(s->engine(), nullptr);
        alone.submit(search_of(c));
        alone.wait();
        expect_answers(alone.outputs()[0], c);
      }
    }
    auto s = open(name, 2);
    Collector together(s->engine(), nullptr);
    for (const json::value& c : cases) {
      together.submit(search_of(c));
      together.submit(sampled(search_of(c)));
    }
    together.wait();
    for (size_t k = 0; k < cases.size(); ++k) expect_answers(together.outputs()[2 * k], cases[k]);
  }
}

}  // namespace
}  // namespace sluice
