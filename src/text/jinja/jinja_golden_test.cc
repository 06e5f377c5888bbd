// The interpreter against jinja2: snippets whose results are kept in tests/golden, and, where the
// shared test data is present, real models' templates and the suites of another implementation.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/json.h"
#include "base/str.h"
#include "text/chat_template.h"

namespace sluice {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json::value read_json(const std::string& path) {
  Result<json::value> v = parse_json(read_file(path));
  CHECK(v.has_value());
  return *v;
}

std::string data_dir() {
  const char* dir = std::getenv("SLUICE_TEST_DATA");
  return std::string(dir ? dir : SLUICE_SOURCE_DIR "/../shared/data") + "/chat_templates";
}

const json::object& golden() {
  static const json::value kGolden =
      read_json(SLUICE_SOURCE_DIR "/tests/golden/chat_templates.json");
  return kGolden.as_object();
}

std::tm tm_of(const std::string& text) {
  std::tm t{};
  CHECK(strptime(text.c_str(), "%Y-%m-%d %H:%M:%S", &t) != nullptr);
  return t;
}

// Rendered text, or why there is none.
Result<std::string> render(const std::string& source, const TemplateInputs& in) {
  Result<ChatTemplate> t = ChatTemplate::parse(source);
  if (!t) return t.error();
  Result<std::vector<TextSegment>> out = t->render(in);
  if (!out) return out.error();
  return joined(*out);
}

// Variables of a test case, of which some have a place of their own.
TemplateInputs inputs_of(const json::object& variables) {
  TemplateInputs in;
  in.now = tm_of(std::string(golden().at("now").as_string()));
  in.add_generation_prompt = false;
  for (const auto& e : variables) {
    if (e.key() == "messages") {
      in.messages = e.value();
    } else if (e.key() == "tools") {
      in.tools = e.value();
    } else if (e.key() == "documents") {
      in.documents = e.value();
    } else if (e.key() == "add_generation_prompt") {
      in.add_generation_prompt = e.value().is_bool() && e.value().get_bool();
    } else {
      in.extra[e.key()] = e.value();
    }
  }
  return in;
}

std::string fnv(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325;
  for (char c : text) h = (h ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return strf("%016llx", static_cast<unsigned long long>(h));
}

// Null: an error is due.
void expect_result(const Result<std::string>& got,
                   const json::value* text,
                   const std::string& what) {
  if (text) {
    EXPECT_TRUE(got.has_value()) << what << "\n" << (got ? "" : got.error().message);
    if (got) {
      EXPECT_EQ(*got, std::string(text->as_string())) << what;
    }
  } else {
    EXPECT_FALSE(got.has_value()) << what << "\n" << (got ? *got : "");
  }
}

TEST(JinjaGolden, Snippets) {
  TemplateInputs in = inputs_of(golden().at("variables").as_object());
  for (const json::value& c : golden().at("snippets").as_array()) {
    const json::array& row = c.as_array();
    std::string source(row[0].as_string());
    expect_result(render(source, in), row[1].is_null() ? nullptr : &row[1], source);
  }
}

TEST(JinjaGolden, RealTemplates) {
  int rendered = 0;
  for (const auto& t : golden().at("templates").as_object()) {
    std::string path = data_dir() + "/real/" + std::string(t.key()) + ".jinja";
    std::string source = read_file(path);
    if (source.empty()) GTEST_SKIP() << path << " is absent; set SLUICE_TEST_DATA";
    for (const auto& r : t.value().as_object()) {
      const json::object& c = golden().at("conversations").as_object().at(r.key()).as_object();
      TemplateInputs in = inputs_of(c);
      in.extra = c.contains("extra") ? c.at("extra").as_object() : json::object();
      in.bos_token = "<s>";
      in.eos_token = "</s>";
      std::string what = std::string(t.key()) + " / " + std::string(r.key());
      Result<std::string> got = render(source, in);
      if (r.value().is_string()) {
        EXPECT_FALSE(got.has_value()) << what << ": jinja2 raises " << r.value().as_string();
        continue;
      }
      EXPECT_TRUE(got.has_value()) << what << ": " << (got ? "" : got.error().message);
      if (!got) continue;
      EXPECT_EQ(static_cast<int64_t>(got->size()), r.value().as_array()[0].as_int64())
          << what << "\n"
          << *got;
      EXPECT_EQ(fnv(*got), std::string(r.value().as_array()[1].as_string())) << what << "\n"
                                                                             << *got;
      ++rendered;
    }
  }
  EXPECT_GT(rendered, 400);
}

TEST(JinjaGolden, SyntaxCases) {
  std::string path = data_dir() + "/syntax_cases.json";
  if (read_file(path).empty()) GTEST_SKIP() << path << " is absent; set SLUICE_TEST_DATA";
  json::value cases = read_json(path);
  const json::object& differs = golden().at("syntax").as_object();
  for (const auto& e : cases.as_object()) {
    const json::object& c = e.value().as_object();
    const json::value* want = &c.at("expected");
    if (auto* d = differs.if_contains(e.key())) want = d->as_object().if_contains("text");
    std::string source(c.at("template").as_string());
    expect_result(render(source, inputs_of(c.at("context").as_object())), want,
                  std::string(e.key()) + ": " + source);
  }
}

TEST(JinjaGolden, RenderCases) {
  std::string path = data_dir() + "/render_cases.json";
  if (read_file(path).empty()) GTEST_SKIP() << path << " is absent; set SLUICE_TEST_DATA";
  json::value all = read_json(path);
  std::string now(all.as_object().at("now").as_string());
  now[now.find('T')] = ' ';
  const json::object& differs = golden().at("render").as_object();
  int count = 0;
  for (const char* suite : {"default", "custom"}) {
    for (const auto& e : all.as_object().at(suite).as_object()) {
      const json::object& c = e.value().as_object();
      TemplateInputs in = inputs_of(c.at("data").as_object());
      in.now = tm_of(now.substr(0, 19));
      Result<std::string> got = render(std::string(c.at("chat_template").as_string()), in);
      const json::value* want = &c.at("target");
      if (auto* d = differs.if_contains(e.key())) want = d->as_object().if_contains("text");
      expect_result(got, want, std::string(e.key()));
      ++count;
    }
  }
  EXPECT_EQ(count, 27);
}

}  // namespace
}  // namespace sluice
