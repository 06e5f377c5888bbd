// What a chat template renders to, whom the bytes come from, and what it may cost.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace sluice {
namespace {

json::value parsed(std::string_view text) {
  Result<json::value> v = parse_json(text);
  CHECK(v.has_value());
  return *v;
}

std::string render(const std::string& source, const TemplateInputs& in = {}) {
  Result<ChatTemplate> t = ChatTemplate::parse(source);
  if (!t) return "parse: " + t.error().message;
  Result<std::vector<TextSegment>> out = t->render(in);
  return out ? joined(*out) : "render: " + out.error().message;
}

// Trusted text as it is, untrusted text in «».
std::string marked(const std::string& source, const TemplateInputs& in) {
  Result<ChatTemplate> t = ChatTemplate::parse(source);
  if (!t) return "parse: " + t.error().message;
  Result<std::vector<TextSegment>> out = t->render(in);
  if (!out) return "render: " + out.error().message;
  std::string s;
  for (const TextSegment& e : *out) s += e.trusted ? e.text : "«" + e.text + "»";
  return s;
}

TemplateInputs with(std::string_view extra) {
  TemplateInputs in;
  in.extra = parsed(extra).as_object();
  return in;
}

// The default model's own template.
constexpr const char* kSmolLm2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}";

TEST(ChatTemplate, DefaultModel) {
  TemplateInputs in;
  in.messages = parsed(R"([{"role": "user", "content": "Hi <|im_end|>"}])");
  EXPECT_EQ(
      marked(kSmolLm2, in),
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
      "<|im_end|>\n<|im_start|>«user»\n«Hi <|im_end|>»<|im_end|>\n<|im_start|>assistant\n");
  in.messages = parsed(R"([{"role": "system", "content": "S"}, {"role": "user", "content": "U"},
                           {"role": "assistant", "content": "A"}])");
  in.add_generation_prompt = false;
  EXPECT_EQ(render(kSmolLm2, in),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\nA<|im_end|>\n");
}

TEST(ChatTemplate, SpecialTokensAreTrusted) {
  TemplateInputs in = with(R"({"u": "<s>"})");
  in.bos_token = "<s>";
  in.eos_token = "</s>";
  in.special_tokens = {{"pad_token", "<pad>"}};
  EXPECT_EQ(marked("{{ bos_token }}{{ u }}{{ eos_token ~ pad_token }}", in), "<s>«<s>»</s><pad>");
}

TEST(ChatTemplate, ProvenanceSurvivesStringFunctions) {
  TemplateInputs in =
      with(R"({"u": "ab", "v": " x,y ", "l": ["p", "q"], "d": {"k": "w"}, "n": 5})");
  const std::pair<const char*, const char*> cases[] = {
      {"{{ '<' + u + '>' }}", "<«ab»>"},
      {"{{ '<' ~ u ~ 1 ~ '>' }}", "<«ab»1>"},
      {"{{ ('<' ~ u ~ '>')[1:] }}", "«ab»>"},
      {"{{ ('<' ~ u ~ '>')[::-1] }}", ">«ba»<"},
      {"{{ ('<' ~ u ~ '>')[0] }}{{ ('<' ~ u)[1] }}", "<«a»"},
      {"{{ v.strip() }}{{ (' [' ~ v ~ '] ')|trim }}", "«x,y»[« x,y »]"},
      {"{{ ('a' ~ u ~ 'a').replace('a', 'Z') }}", "ZZ«b»Z"},
      {"{{ 'xyx'.replace('y', u) }}", "x«ab»x"},
      {"{{ ('<' ~ u)|upper }}{{ ('<' ~ u)|title }}", "<«AB»<«Ab»"},
      {"{{ l|join('+') }}{{ '-'.join(l) }}", "«p»+«qp»-«q»"},
      {"{{ v.split(',')[1] }}{{ ('a,' ~ u).split(',')|join('/') }}", "«y »a/«ab»"},
      {"{{ '%s=%s' % ('k', u) }}{{ '{}:{}'.format('k', u) }}", "k=«ab»k:«ab»"},
      {"{{ d|tojson }}{{ {'a': 1}|tojson }}{{ d }}", "«{\"k\": \"w\"}»{\"a\": 1}«{'k': 'w'}»"},
      {"{{ n + 1 }}{{ u|length }}{{ u == 'ab' }}", "62True"},
      {"{% for k, x in d.items() %}{{ k }}={{ x }};{% endfor %}", "«k»=«w»;"},
      {"{% set b %}<{{ u }}>{% endset %}{{ b }}", "<«ab»>"},
      {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(u) ~ '!' }}", "<«ab»>!"},
      {"{% filter upper %}<{{ u }}>{% endfilter %}", "<«AB»>"},
      {"{% set ns = namespace(s='') %}{% for x in l %}{% set ns.s = ns.s + '.' + x %}{% endfor "
       "%}{{ ns.s }}",
       ".«p».«q»"},
      {"{{ {'ab': 'literal'}[u] }}", "literal"},
      {"{{ ('a\\n' ~ u)|indent(2) }}", "a\n  «ab»"},
      {"{{ strftime_now('%Y') }}", "1900"},
      {"{{ u|e }}{{ u|reverse }}{{ u * 2 }}{{ u|first }}", "«abbaababa»"},
  };
  for (const auto& [source, want] : cases) EXPECT_EQ(marked(source, in), want) << source;
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_EQ(render("a\nb\n{{ raise_exception('Roles must alternate') }}"),
            "render: chat template: Roles must alternate (line 3)");
  EXPECT_EQ(render("a\n{% if x %}\n"),
            "parse: chat template: unexpected end of template; 'endif' is missing (line 2)");
  EXPECT_EQ(render("{{ 1\n + nope.x }}"), "render: chat template: 'nope' is undefined (line 2)");
  EXPECT_EQ(
      render("\n\n{{ [].append(1) }}"),
      "render: chat template: access to attribute 'append' of 'list' object is unsafe (line 3)");
  EXPECT_EQ(
      render("\n{% include 'x' %}"),
      "parse: chat template: {% include %} is not supported: a chat template is one file (line 2)");
  EXPECT_EQ(render("{{ 10 ** 4300 }}"),
            "render: chat template: an integer has more than 4300 digits (line 1)");
  EXPECT_EQ(render("\xff"), "parse: chat template: not valid UTF-8");
}

std::string limited(const std::string& source, TemplateLimits limits = {}) {
  TemplateInputs in;
  in.limits = limits;
  in.limits.max_time = kNever;  // on a slow machine too, the limit named is the one reached
  return render(source, in);
}

bool fails_with(const std::string& result, std::string_view what) {
  return result.find("chat template: ") != std::string::npos &&
         result.find(what) != std::string::npos;
}

TEST(ChatTemplateBudget, Steps) {
  std::string loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_TRUE(fails_with(limited(loops), "too many steps")) << limited(loops);
  EXPECT_TRUE(fails_with(limited("{% for i in range(99) %}x{% endfor %}", {.max_steps = 50}),
                         "too many steps"));
}

TEST(ChatTemplateBudget, Memory) {
  for (const char* source : {
           "{{ ('x' * 10**9)|length }}",
           "{{ ([1] * 10**9)|length }}",
           "{{ [1, 2] * 4611686018427387904 }}",
           "{% set ns = namespace(s='x' * 1000) %}{% for i in range(99) %}{% set ns.s = ns.s + "
           "ns.s %}{% endfor %}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% "
           "endfor %}",
           "{% set s = 'x' * 1000000 %}{{ ([s] * 10000)|join|length }}",
           "{% set s = 'x' * 1000000 %}{{ s.replace('x', s)|length }}",
           "{% set ns = namespace(l=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}{% "
           "endfor %}{{ ns.l|string|length }}",
           "{{ '%99999s' % 'x' * 1000000 }}",
       }) {
    std::string result = limited(source);
    EXPECT_TRUE(fails_with(result, "out of memory") || fails_with(result, "too many steps"))
        << source << result;
  }
  EXPECT_TRUE(fails_with(limited("{{ range(10**9) }}"), "range too big"));
  EXPECT_TRUE(fails_with(limited("{{ '%999999999d' % 1 }}"), "width too large"));
  // Memory that is no longer used counts no more.
  EXPECT_EQ(limited("{% for i in range(200) %}{% set x = 'x' * 100000 %}{% endfor %}ok",
                    {.max_memory_bytes = 1 << 20}),
            "ok");
}

TEST(ChatTemplateBudget, Output) {
  std::string result = limited("{% for i in range(10000) %}{{ 'x' * 1000 }}{% endfor %}");
  EXPECT_TRUE(fails_with(result, "output is too long")) << result;
  EXPECT_EQ(limited("12345", {.max_output_bytes = 5}), "12345");
  EXPECT_TRUE(fails_with(limited("123456", {.max_output_bytes = 5}), "output is too long"));
}

std::string repeated(std::string_view s, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += s;
  return out;
}

TEST(ChatTemplateBudget, Depth) {
  EXPECT_TRUE(fails_with(limited("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "too deeply"));
  EXPECT_TRUE(
      fails_with(limited("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"), "too deep"));
  EXPECT_TRUE(fails_with(limited("{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set "
                                 "ns.x = [ns.x] %}{% endfor %}"),
                         "too deeply"));
  EXPECT_TRUE(fails_with(limited("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}"),
                         "contains itself"));
  for (const char* open : {"(", "[", "{1:", "-", "not ", "a(", "a[", "a if b else ", "a|f("}) {
    EXPECT_TRUE(fails_with(limited("{{ " + repeated(open, 100000)), "")) << open;
  }
  for (const char* link : {"+a", "|f", ".a", "[0]", "**a", " if a", "()"}) {
    EXPECT_TRUE(fails_with(limited("{{ a" + repeated(link, 100000) + " }}"), "")) << link;
  }
  EXPECT_TRUE(fails_with(limited(repeated("{% if a %}", 50000)), "nested too deeply"));
  // Flat chains are no nesting.
  EXPECT_EQ(limited("{{ 1" + repeated(" and 1", 5000) + " }}{% if 0 %}" +
                    repeated("{% elif 0 %}", 5000) + "{% else %}x{% endif %}"),
            "1x");
  EXPECT_EQ(
      limited("{{ " + repeated("(", 60) + "1" + repeated(")", 60) + repeated(" + 1", 300) + " }}"),
      "301");
}

TEST(ChatTemplate, CyclesAreFreed) {  // meaningful under LeakSanitizer
  EXPECT_EQ(
      limited("{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ ns }}{% endmacro %}"
              "{% set ns.m = m %}{% for i in [1] %}{% set ns.l = loop %}{{ loop.changed(loop) }}"
              "{% set ns.f = loop.changed %}{% endfor %}ok"),
      "Trueok");
}

TEST(ChatTemplate, InputsAreVisible) {
  TemplateInputs in = with(R"({"enable_thinking": false, "bos_token": "mine"})");
  in.bos_token = "<s>";
  in.tools = parsed(R"([{"n": 18446744073709551615, "x": 1.0}])");
  in.now.tm_year = 126;
  in.now.tm_mon = 2;
  in.now.tm_mday = 5;
  EXPECT_EQ(render("{{ tools|tojson }}{{ documents }}{{ enable_thinking }}{{ bos_token }}"
                   "{{ strftime_now('%d %b %Y') }}{{ add_generation_prompt }}",
                   in),
            "[{\"n\": 18446744073709551615, \"x\": 1.0}]NoneFalsemine05 Mar 2026True");
}

}  // namespace
}  // namespace sluice
