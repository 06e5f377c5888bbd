#include "dialect/output_parser.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "base/json.h"
#include "base/str.h"

namespace sluice::dialect {

namespace {

using Kind = OutputEvent::Kind;

struct ParserCase {
  std::string name;
  std::string input;
  OutputParser::Options options;
  json::object expected;
};

std::shared_ptr<const ToolSet> tool_set(const json::value& tools) {
  Result<ToolSet> set = ToolSet::read(tools);
  EXPECT_TRUE(set) << (set ? "" : set.error().message);
  return std::make_shared<const ToolSet>(set ? *set : ToolSet());
}

// {"name": schema of its parameters} as OpenAI's list.
json::array openai_tools(const json::object& tools) {
  json::array list;
  for (const auto& t : tools) {
    list.push_back(
        json::object{{"type", "function"},
                     {"function", json::object{{"name", t.key()}, {"parameters", t.value()}}}});
  }
  return list;
}

json::object read_golden() {
  std::ifstream file(SLUICE_SOURCE_DIR "/tests/golden/tool_calls.json");
  std::stringstream text;
  text << file.rdbuf();
  Result<json::value> parsed = parse_json(text.str());
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? parsed->as_object() : json::object();
}

std::vector<ParserCase> read_cases() {
  json::object golden = read_golden();
  std::vector<ParserCase> cases;
  for (const json::value& v : golden.at("cases").as_array()) {
    const json::object& o = v.as_object();
    auto text = [&](const char* key) {
      const json::value* x = o.if_contains(key);
      return x ? std::string(x->as_string()) : std::string();
    };
    ParserCase c;
    c.name = text("format") + ": " + text("name");
    c.input = text("input");
    c.options.format.tools = tool_format_named(text("format"));
    c.options.format.think = think_format_named(text("think"));
    EXPECT_TRUE(c.options.format.tools || text("format") == "none") << c.name;
    EXPECT_EQ(!c.options.format.think, text("think").empty()) << c.name;
    const json::value* tools = o.if_contains("tools");
    c.options.tools = tool_set(openai_tools((tools ? *tools : golden.at("tools")).as_object()));
    c.options.thinking = o.if_contains("thinking");
    c.expected = o;
    cases.push_back(std::move(c));
  }
  return cases;
}

// Adjacent pieces of the same text become one.
std::vector<OutputEvent> merged(const std::vector<OutputEvent>& events) {
  std::vector<OutputEvent> out;
  for (const OutputEvent& e : events) {
    bool joins = !out.empty() && out.back().kind == e.kind && out.back().call == e.call &&
                 e.kind <= Kind::arguments && e.kind != Kind::call_begin;
    if (joins) {
      out.back().text += e.text;
    } else {
      out.push_back(e);
    }
  }
  return out;
}

std::vector<OutputEvent> parse_pieces(const OutputParser::Options& options,
                                      const std::vector<std::string_view>& pieces) {
  OutputParser parser(options);
  std::vector<OutputEvent> events, piece;
  for (std::string_view p : pieces) {
    piece.clear();
    parser.push(p, piece);
    events.insert(events.end(), piece.begin(), piece.end());
  }
  piece.clear();
  parser.finish(piece);
  events.insert(events.end(), piece.begin(), piece.end());
  return merged(events);
}

std::string shown(const std::vector<OutputEvent>& events) {
  std::string out;
  for (const OutputEvent& e : events) {
    constexpr const char* kNames[] = {"content", "reasoning", "call", "arguments", "end"};
    out += std::string(kNames[static_cast<int>(e.kind)]) + " " + std::to_string(e.call) + " [" +
           e.text + "]" + (e.complete ? "\n" : " incomplete\n");
  }
  return out;
}

struct Parsed {
  std::string content, reasoning;
  json::array calls;
};

Parsed collect_events(const std::vector<OutputEvent>& events) {
  Parsed p;
  std::string name, arguments;
  for (const OutputEvent& e : events) {
    switch (e.kind) {
      case Kind::content:
        p.content += e.text;
        break;
      case Kind::reasoning:
        p.reasoning += e.text;
        break;
      case Kind::call_begin:
        EXPECT_EQ(static_cast<size_t>(e.call), p.calls.size());
        name = e.text, arguments.clear();
        break;
      case Kind::arguments:
        arguments += e.text;
        break;
      case Kind::call_end: {
        Result<json::value> value = parse_json(arguments);
        EXPECT_TRUE(e.complete == value.has_value() || !valid_utf8(arguments)) << arguments;
        EXPECT_TRUE(!e.complete || !value || value->is_object()) << arguments;
        json::object call{{"name", name}};
        call["arguments"] = e.complete && value ? *value : json::value(arguments);
        if (!e.complete) call["complete"] = false;
        p.calls.push_back(std::move(call));
        break;
      }
    }
  }
  return p;
}

std::vector<std::string_view> random_pieces(std::string_view text, std::mt19937_64& random) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    size_t n = std::min<size_t>(1 + random() % 12, text.size());
    pieces.push_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return pieces;
}

}  // namespace

TEST(OutputParser, GoldenCases) {
  for (const ParserCase& c : read_cases()) {
    SCOPED_TRACE(c.name + "\n" + c.input);
    std::vector<OutputEvent> events = parse_pieces(c.options, {c.input});
    Parsed p = collect_events(events);
    auto expected = [&](const char* key) {
      const json::value* x = c.expected.if_contains(key);
      return x ? *x : json::value("");
    };
    EXPECT_EQ(json::value(p.content), expected("content")) << shown(events);
    EXPECT_EQ(json::value(p.reasoning), expected("reasoning")) << shown(events);
    EXPECT_EQ(json::serialize(p.calls), json::serialize(c.expected.at("calls"))) << shown(events);
  }
}

TEST(OutputParser, EventsDoNotDependOnCuts) {
  std::mt19937_64 random(7);
  for (const ParserCase& c : read_cases()) {
    SCOPED_TRACE(c.name);
    std::string_view text = c.input;
    std::vector<OutputEvent> whole = parse_pieces(c.options, {text});
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      std::vector<OutputEvent> parts =
          parse_pieces(c.options, {text.substr(0, cut), text.substr(cut)});
      ASSERT_EQ(shown(parts), shown(whole)) << cut;
    }
    std::vector<std::string_view> bytes;
    for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
    ASSERT_EQ(shown(parse_pieces(c.options, bytes)), shown(whole));
    for (int round = 0; round < 10; ++round) {
      ASSERT_EQ(shown(parse_pieces(c.options, random_pieces(text, random))), shown(whole));
    }
  }
}

// Every case cut off, spliced with another, and with bytes changed. What holds no call is kept
// whole.
TEST(OutputParser, DamagedTextIsKept) {
  std::mt19937_64 random(11);
  std::vector<ParserCase> cases = read_cases();
  for (const ParserCase& c : cases) {
    for (int round = 0; round < 20; ++round) {
      std::string text = c.input.substr(0, random() % (c.input.size() + 1));
      const std::string& other = cases[random() % cases.size()].input;
      text += other.substr(random() % (other.size() + 1));
      for (int i = 0; i < 2 && !text.empty(); ++i)
        text[random() % text.size()] = "<>{}[]\"',:;|=\\/ \nax1"[random() % 21];
      SCOPED_TRACE(c.name + "\n" + text);
      std::vector<OutputEvent> whole = parse_pieces(c.options, {text});
      ASSERT_EQ(shown(parse_pieces(c.options, random_pieces(text, random))), shown(whole));
      Parsed p = collect_events(whole);
      bool plain = p.calls.empty() && !c.options.format.is_harmony() && !c.options.format.think;
      ASSERT_TRUE(!plain || p.content == text) << p.content;
    }
  }
}

// Without tools, and without a format, text stays what it is.
TEST(OutputParser, TextWithoutToolsIsContent) {
  for (const ParserCase& c : read_cases()) {
    if (c.options.format.is_harmony() || c.options.format.think) continue;
    OutputParser::Options options = c.options;
    options.tools = nullptr;
    std::vector<OutputEvent> events = parse_pieces(options, {c.input});
    std::string content;
    for (const OutputEvent& e : events) {
      EXPECT_EQ(e.kind, Kind::content);
      content += e.text;
    }
    EXPECT_EQ(content, c.input);
  }
}

TEST(OutputParser, HoldsBackOnlyWhatMayBeAMarker) {
  OutputParser::Options options;
  options.format.tools = tool_format_named("hermes");
  options.tools = tool_set(openai_tools({{"f", json::object()}}));
  OutputParser parser(options);
  std::vector<OutputEvent> out;
  parser.push("2 <", out);
  EXPECT_EQ(shown(out), "content -1 [2 ]\n");
  out.clear();
  parser.push(" 3 <tool", out);
  EXPECT_EQ(shown(out), "content -1 [< 3 ]\n");
  out.clear();
  parser.push("s>", out);
  EXPECT_EQ(shown(out), "content -1 [<tools>]\n");
  out.clear();
  parser.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a", out);
  EXPECT_EQ(shown(out), "call 0 [f]\narguments 0 [{\"a]\n");
}

// Blocks that never become a call are given out in the end, not kept.
TEST(OutputParser, MemoryIsBounded) {
  OutputParser::Options options;
  options.format.tools = tool_format_named("hermes");
  options.format.think = think_format_named("think");
  options.tools = tool_set(openai_tools({{"f", json::object()}}));
  OutputParser parser(options);
  std::vector<OutputEvent> out;
  parser.push("<tool_call>{\"arguments\": {\"a\": \"", out);
  std::string piece(1000, 'x');
  size_t given = 0;
  for (int i = 0; i < 1000; ++i) {
    out.clear();
    parser.push(piece, out);
    for (const OutputEvent& e : out) given += e.text.size();
  }
  EXPECT_GT(given, 900'000u);
}

}  // namespace sluice::dialect
