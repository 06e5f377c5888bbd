// Templates made to be slow or large, one per operation, and random ones. Each ends with text or an
// error within its steps, and its memory stays within its limits, as operator new sees it.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>

#include "base/json.h"
#include "base/str.h"
#include "operator_new.h"
#include "text/chat_template.h"

namespace sluice {
namespace {

using alloc::live_bytes;
using alloc::peak_bytes;

bool full() {
  const char* v = std::getenv("SLUICE_TEST_FULL");
  return v && std::string_view(v) == "1";
}

// Of one call on this thread.
class Watch {
 public:
  Watch() : base_(live_bytes), start_(std::clock()) { peak_bytes = live_bytes; }
  size_t bytes() const { return peak_bytes - base_; }
  double seconds() const { return static_cast<double>(std::clock() - start_) / CLOCKS_PER_SEC; }

 private:
  size_t base_;
  std::clock_t start_;
};

struct Outcome {
  std::string error;  // empty: it rendered
  size_t output = 0;
  uint64_t steps = 0;
  size_t bytes = 0;  // peak
  double seconds = 0;
};

Outcome run(const std::string& source, const TemplateInputs& in) {
  Outcome o;
  Watch watch;
  {
    Result<ChatTemplate> t = ChatTemplate::parse(source);
    if (!t) {
      o.error = t.error().message;
    } else {
      TemplateCost cost;
      Result<std::vector<TextSegment>> out = t->render(in, &cost);
      o.steps = cost.steps;
      if (out) {
        for (const TextSegment& s : *out) o.output += s.text.size();
      } else {
        o.error = out.error().message;
      }
    }
  }
  o.bytes = watch.bytes();
  o.seconds = watch.seconds();
  return o;
}

std::string repeated(std::string_view s, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}
// `body` over and over; `setup` once.
std::string loop(const std::string& setup, const std::string& body) {
  return setup + "{% for i in range(2000) %}{% for j in range(2000) %}" + body +
         "{% endfor %}{% endfor %}";
}
// n.l is a tuple (or list) of depth 60 whose walk visits 2^60 items.
std::string shared(const char* open, const char* close) {
  return strf(
      "{%% set n = namespace(l=%s1, 1%s) %%}{%% for i in range(60) %%}{%% set n.l = %sn.l, n.l%s "
      "%%}{%% endfor %%}",
      open, close, open, close);
}

struct Bomb {
  const char* name;
  std::string source;
};

const std::string kBig = "{% set s = 'x' * 1000000 %}";
const std::string kList = "{% set l = range(20000)|list %}";
const std::string kTuple = shared("(", ")"), kNest = shared("[", "]");

std::vector<Bomb> bombs() {
  std::string vars, few, params, names;
  for (int i = 0; i < 20000; ++i) vars += "{% set v" + std::to_string(i) + " = 1 %}";
  few = vars.substr(0, vars.find("{% set v200 "));
  for (int i = 0; i < 50000; ++i) params += (i ? ",p" : "p") + std::to_string(i);
  for (int i = 0; i < 50000; ++i) names += (i ? ",k" : "k") + std::to_string(i) + "=1";
  return {
      {"hash a shared tuple", kTuple + "{% set d = {n.l: 1} %}"},
      {"look up a shared tuple", kTuple + "{{ {1: 2}[n.l] }}"},
      {"get a shared tuple", kTuple + "{{ {1: 2}.get(n.l) }}"},
      {"unique shared tuples", kTuple + "{{ [n.l, n.l]|unique|list|length }}"},
      {"compare shared tuples", kTuple + "{% set a = n.l %}" + kTuple + "{{ a == n.l }}"},
      {"order shared lists", kNest + "{% set a = n.l %}" + kNest + "{{ a < n.l }}"},
      {"print a shared list", kNest + "{{ n.l }}"},
      {"tojson a shared list", kNest + "{{ n.l|tojson }}"},
      {"tojson with a long indent", kNest + "{{ n.l|tojson(indent='x' * 100000) }}"},
      {"join a shared list", kNest + "{{ [n.l, n.l]|join }}"},
      {"concatenate a shared list", kNest + "{{ n.l ~ n.l }}"},
      {"format a shared list", kNest + "{{ '%s' % n.l }}{{ '{}'.format(n.l) }}"},
      {"find in a shared list", kNest + "{% set a = n.l %}" + kNest + "{{ a in [n.l, 1] }}"},
      {"sort shared lists", kNest + "{% set a = n.l %}" + kNest + "{{ [a, n.l, a]|sort|length }}"},
      {"group by a shared tuple", kTuple + "{{ [{'a': n.l}, {'a': n.l}]|groupby('a')|length }}"},
      {"count in shared lists", kNest + "{% set a = n.l %}" + kNest + "{{ [a, a].count(n.l) }}"},
      {"loop.changed", kNest + "{% set a = n.l %}" + kNest +
                           "{% for i in [1, 2] %}{{ loop.changed(a if i == 1 else n.l) }}"
                           "{% endfor %}"},
      {"empty loops", loop("", "")},
      {"doubling text",
       "{% set n = namespace(s='ab') %}{% for i in range(99) %}{% set n.s = n.s + "
       "n.s %}{% endfor %}"},
      {"doubling lists",
       "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s "
       "+ n.s %}{% endfor %}"},
      {"repeated text", "{{ ('x' * 10**9)|length }}"},
      {"repeated empty text", loop("", "{% set x = '' * 10**18 %}")},
      {"repeated mixed trust", "{% set x = (messages[0].content ~ '<') * 10**6 %}{{ x|length }}"},
      {"many live strings",
       "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = "
       "[n.l, 'x' * 100000] %}{% endfor %}"},
      {"output", loop("", "{{ 'x' * 10000 }}")},
      {"output of nothing", loop(kBig, "{{ s[:0] }}")},
      {"captured output", loop("", "{% set x %}{{ 'x' * 1000000 }}{% endset %}")},
      {"replace", loop(kBig, "{% set x = s.replace('x', 'y') %}")},
      {"replace that grows", kBig + "{{ s.replace('x', s)|length }}"},
      {"replace of nothing", loop(kBig, "{% set x = s.replace('', '-') %}")},
      {"find at the end", loop(kBig, "{% if s.find('y') > 0 %}{% endif %}")},
      {"find a repetitive needle",
       loop(kBig + "{% set t = 'x' * 9999 + 'y' %}", "{{ s.rfind(t) and t in s }}")},
      {"count", loop(kBig, "{% set x = s.count('x') %}")},
      {"split", loop(kBig, "{% set x = s.split('x')|length %}")},
      {"splitlines", "{% set s = '\\n' * 2000000 %}{{ s.splitlines()|length }}"},
      {"strip many characters", loop(kBig, "{% set x = 'abc'.strip(s) %}")},
      {"startswith many", loop(kBig + "{% set t = (s + 'y',) * 20000 %}",
                               "{% if (s + s).startswith(t) %}{% endif %}")},
      {"removeprefix", loop(kBig, "{% set x = s.removeprefix(s + 'y') %}")},
      {"upper", loop("{% set s = '\xc3\xa9' * 1000000 %}", "{% set x = s.upper() %}")},
      {"title", loop("{% set s = '\xc3\xa9 ' * 700000 %}", "{% set x = s|title %}")},
      {"wordcount", loop("{% set s = '\xc3\xa9 ' * 700000 %}", "{% set x = s|wordcount %}")},
      {"isalpha", loop("{% set s = '\xc3\xa9' * 1000000 %}", "{% if s.isalpha() %}{% endif %}")},
      {"urlencode", loop("{% set s = '\xc3\xa9' * 500000 %}", "{% set x = s|urlencode %}")},
      {"escape", loop("{% set s = '<' * 1000000 %}", "{% set x = s|e %}")},
      {"escape by adding", loop("{% set s = '<' * 1000000 %}", "{% set x = ('a'|safe) + s %}")},
      {"striptags", loop("{% set s = '<a' * 1000000 %}", "{% set x = s|striptags %}")},
      {"repr of text", loop("{% set s = '\\x01' * 500000 %}", "{% set x = [s]|string %}")},
      {"tojson of text", loop("{% set s = '\\x01' * 500000 %}", "{% set x = s|tojson %}")},
      {"length of text", loop(kBig, "{% if s|length %}{% endif %}")},
      {"truncate", loop(kBig, "{% set x = s|truncate(1000000) %}")},
      {"index of text", loop(kBig, "{% set x = s[999999] %}")},
      {"slice of text", loop(kBig, "{% set x = s[1::2] %}")},
      {"reverse of text", loop(kBig, "{% set x = s|reverse %}")},
      {"characters", loop(kBig, "{% set x = s|list %}")},
      {"int of text", loop("{% set s = '1' * 1000000 %}", "{% set x = s|int %}")},
      {"float of text", loop("{% set s = '1' * 1000000 %}", "{% set x = s|float %}")},
      {"equal texts", loop(kBig + "{% set t = s + 'a' %}{% set s = s + 'b' %}",
                           "{% if s == t or s < t %}{% endif %}")},
      {"long keys", loop(kBig + "{% set d = {s + 'a': 1, s + 'b': 2} %}{% set k = s + 'c' %}",
                         "{% if d[k] %}{% endif %}")},
      {"other keys among text",
       loop("{% set d = dict(messages[1]) %}", "{% if d[5] %}{% endif %}")},
      {"dict of other keys", kList + "{% set d = dict(l|map('string')|list|batch(2)) %}"
                                     "{% set e = dict(l|batch(2)) %}"},
      {"equal dicts",
       loop("{% set d = messages[1] %}{% set e = dict(d) %}", "{% if d == e %}{% endif %}")},
      {"a name that is no filter", loop(kBig, "{% if s is filter or s is test %}{% endif %}")},
      {"map by an unused name", loop(kBig, "{% set x = []|map(s) %}")},
      {"map with many arguments",
       kList + "{% set e = [[]] * 20000 %}{{ e|map('map', 'upper', *l)|list|length }}"},
      {"select with many arguments",
       kList + "{% set e = [[]] * 20000 %}{{ e|map('select', 'eq', *l)|list|length }}"},
      {"many keywords", "{% macro f() %}{{ kwargs }}{% endmacro %}{{ f(**messages[1]) }}"},
      {"first of a long list", loop(kList, "{% set x = l|first %}")},
      {"sum of lists", kList + "{{ l|map('list')|sum(start=[]) }}"},
      {"sum grows", "{{ ([[1]] * 50000)|sum(start=[])|length }}"},
      {"sort", loop(kList, "{% set x = l|reverse|sort %}")},
      {"sort backwards", kList + "{{ l|sort(reverse=true)|length }}"},
      {"unique", kList + "{{ l|unique|list|length }}"},
      {"contains", loop(kList, "{% if -1 in l %}{% endif %}")},
      {"slices", kList + "{{ l|slice(10**9)|list|length }}"},
      {"batch with fill", kList + "{{ l|batch(10**12, 'x')|list|length }}"},
      {"copies in recursion",
       "{% set l = range(99999)|list %}{% macro f() %}{% for x in l if f() "
       "%}{% endfor %}{% endmacro %}{{ f() }}"},
      {"arguments in recursion",
       "{% set l = range(99999)|list %}{% macro f() %}{{ f(*l) if varargs }}{{ f(*l) }}"
       "{% endmacro %}{{ f() }}"},
      {"captures in recursion",
       "{% macro f() %}{{ 'x' * 500000 }}{{ f() }}{% endmacro %}{{ f() }}"},
      {"recursive loop", "{% for x in [[1, 2]] recursive %}{{ loop([x, x]) }}{% endfor %}"},
      {"macros calling twice",
       "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) "
       "}}"},
      {"callers kept", loop("", "{% macro m() %}{% endmacro %}")},
      {"scopes kept", loop("", few + "{% macro m() %}{% endmacro %}")},
      {"namespaces kept", loop("", "{% set x = namespace(a='x' * 1000) %}")},
      {"namespace chain", "{% set a = namespace(s='{0' ~ '.x' * 400000 ~ '}') %}{% set a.x = a %}" +
                              loop("", "{{ a.s.format(a)|length }}")},
      {"wide formats", loop("", "{% set x = '%99999d|%99999s' % (1, 2) %}")},
      {"wide padding", loop("", "{% set x = 'x'.ljust(99999) ~ 'x'|center(99999) %}")},
      {"many fields", loop("{% set s = '{}' * 5000 %}{% set l = range(5000)|list %}",
                           "{% set x = s.format(*l) %}")},
      {"indent", loop("{% set s = 'a\\n' * 1000 %}", "{% set x = s|indent(9999) %}")},
      {"powers", loop("", "{% set x = 3 ** 39 %}")},
      {"large powers", loop("", "{% set x = 7 ** 5000 %}")},
      {"powers without end", loop("", "{% set x = 7 ** 10 ** 18 %}")},
      {"products", loop("{% set a = 7 ** 2500 %}", "{% set x = a * a %}")},
      {"quotients",
       loop("{% set a = 10 ** 4200 %}{% set b = 7 ** 2500 %}", "{% set x = a // b %}")},
      {"large numbers in base 16", loop("{% set a = 10 ** 4200 %}", "{% set x = '%x' % a %}")},
      {"large numbers compared", loop("{% set a = 10 ** 4200 %}", "{% set x = a < 1.5 %}")},
      {"wordwrap", loop("{% set s = 'x' * 500000 %}", "{% set x = s|wordwrap(1) %}")},
      {"wordwrap of hyphens", loop("{% set s = 'ab-' * 200000 %}", "{% set x = s|wordwrap %}")},
      {"pprint", loop("{% set s = 'ab ' * 200000 %}", "{% set x = s|pprint %}")},
      {"pprint a shared list", kNest + "{{ n.l|pprint }}"},
      {"urlize", loop("{% set s = '(www.x.com) ' * 50000 %}", "{% set x = s|urlize %}")},
      {"urlize with schemes",
       loop("{% set s = 'a:b ' * 5000 %}", "{% set x = s|urlize(extra_schemes=['x'] * 5000) %}")},
      {"xmlattr", loop(kBig, "{% set x = {s: s}|xmlattr %}")},
      {"encode", loop(kBig, "{% set x = s.encode() %}")},
      {"decode", loop("{% set s = ('x' * 100000).encode() %}", "{% set x = s.decode() %}")},
      {"a final sigma",
       loop("{% set s = (\"'\" * 1000 + '\xce\xa3') * 500 %}", "{% set x = s.lower() %}")},
      {"slices of nothing", "{{ [" + repeated("none[1:],", 20000) + "] }}"},
      {"undefined names", loop(kBig, "{% if messages[0][s] %}{% endif %}")},
      {"attribute paths",
       loop("{% set p = 'a.' * 100000 %}", "{% set x = [{}]|map(attribute=p, default={})|list %}")},
      {"strftime", loop("", "{% set x = strftime_now('%c' * 1000) %}")},
      {"many variables", vars + loop("", "{% if v19999 %}{% endif %}")},
      {"many parameters", "{% macro m(" + params + ") %}{% endmacro %}"},
      {"many keyword arguments", "{{ f(" + names + ") }}"},
      {"many names", "{% macro m(a) %}" + repeated("{{ caller }}", 60000) + "{% endmacro %}"},
      {"many brackets", "{{ " + repeated("[", 400000)},
      {"many elements", "{{ [" + repeated("1,", 500000) + "] }}"},
      {"many blocks", repeated("{% if a %}", 90000)},
      {"many raw tags", repeated("{% raw ", 100000)},
      {"unclosed comment", repeated("{# ", 300000)},
      {"long raised message", kBig + "{{ raise_exception(s) }}"},
  };
}

TemplateInputs small_inputs() {
  TemplateInputs in;
  json::object many;
  for (int i = 0; i < 2000; ++i) many["key" + std::to_string(i)] = i;
  in.messages = json::array{json::object{{"role", "user"}, {"content", "Hi <|im_end|> \xc3\xa9"}},
                            std::move(many)};
  in.extra["n"] = 7;
  in.extra["f"] = 2.5;
  in.extra["s"] = "W\xc3\xb6rld";
  in.extra["l"] = json::array{3, 1, 2};
  return in;
}

constexpr size_t kMiB = 1u << 20;

TEST(TemplateBombs, EndWithinTheirLimits) {
  TemplateInputs in = small_inputs();
  // Twice the limit of values and thrice that of the output, which is copied at the end; the parsed
  // template; the inputs, with 8 times their size.
  const size_t max_bytes = 64 * kMiB;
  double slowest = 0;
  size_t largest = 0;
  for (const Bomb& b : bombs()) {
    Outcome o = run(b.source, in);
    EXPECT_LE(o.output, 8 * kMiB) << b.name;
    EXPECT_LE(o.steps, in.limits.max_steps + kMiB) << b.name;
    EXPECT_LT(o.bytes, b.source.size() > 100000 ? 100 * kMiB : max_bytes) << b.name;
    EXPECT_LT(o.error.size(), 600u) << b.name;
    EXPECT_EQ(o.error.find('\n'), std::string::npos) << b.name;
    EXPECT_LT(o.seconds, 5) << b.name << ": " << o.error;  // 0.1 s where this was written
    if (full()) {
      std::printf("%-28s %7.1f ms %7.1f MiB %8llu steps  %s\n", b.name, o.seconds * 1e3,
                  static_cast<double>(o.bytes) / kMiB, static_cast<unsigned long long>(o.steps),
                  o.error.substr(0, 60).c_str());
    }
    slowest = std::max(slowest, o.seconds);
    largest = std::max(largest, o.bytes);
  }
  std::printf("%zu bombs: slowest %.1f ms, largest %.1f MiB\n", bombs().size(), slowest * 1e3,
              static_cast<double>(largest) / kMiB);
}

TEST(TemplateBombs, TimeIsLimited) {
  class FastClock final : public Clock {  // a millisecond passes with each look
   public:
    Time now() const override { return Time(std::chrono::milliseconds(++looks)); }
    mutable int looks = 0;
  } clock;
  TemplateInputs in;
  in.clock = &clock;
  in.limits.max_time = std::chrono::milliseconds(20);
  Outcome o = run(loop("", ""), in);
  EXPECT_NE(o.error.find("takes too long"), std::string::npos) << o.error;
  EXPECT_LT(clock.looks, 30);
  EXPECT_GT(o.steps, 50'000u);  // the clock is read rarely
  in.limits.max_time = kNever;
  EXPECT_NE(run(loop("", ""), in).error.find("too many steps"), std::string::npos);
}

TEST(TemplateBombs, LimitsGrowWithTheInputs) {
  TemplateInputs in;
  in.limits.max_time = kNever;
  in.messages =
      json::array{json::object{{"role", "user"}, {"content", std::string(6 * kMiB, 'x')}}};
  Outcome o =
      run("{% for m in messages %}{{ '<' + m.role + '>' + m.content|trim + '</s>' }}"
          "{% if 'y' in m.content %}{{ m.content|upper }}{% endif %}{% endfor %}",
          in);
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.output, 6 * kMiB + 10);
}

// ---- colliding keys

uint64_t unmixed(uint64_t v) {  // inverts x = x * k; x ^= x >> 47; x = x * k
  constexpr uint64_t kMul = 0xc6a4a7935bd1e995;
  uint64_t inverse = kMul;
  for (int i = 0; i < 5; ++i) inverse *= 2 - kMul * inverse;
  v *= inverse;
  v ^= v >> 47;
  return v * inverse;
}

// Keys of 16 ASCII bytes with one hash under std::hash of libstdc++ (MurmurHash64A, fixed seed).
std::vector<std::string> colliding_keys(size_t count) {
  constexpr uint64_t kMul = 0xc6a4a7935bd1e995;
  auto mixed = [](uint64_t v) {
    v *= kMul;
    v ^= v >> 47;
    return v * kMul;
  };
  std::vector<std::string> out;
  uint64_t seed = 0xc70f6907u ^ (16 * kMul);
  for (uint64_t i = 0; out.size() < count; ++i) {
    uint64_t first = 0x4141414141414141;
    for (int k = 0; k < 8; ++k) first += (i >> 4 * k & 15) << 8 * k;
    uint64_t second = unmixed(((seed ^ mixed(first)) * kMul) ^ 0x12345);
    if ((second & 0x8080808080808080) != 0) continue;
    std::string key(16, ' ');
    for (size_t k = 0; k < 8; ++k) {
      key[k] = static_cast<char>(first >> 8 * k);
      key[8 + k] = static_cast<char>(second >> 8 * k);
    }
    out.push_back(std::move(key));
  }
  return out;
}

TEST(TemplateBombs, CollidingKeys) {
  std::vector<std::string> keys = colliding_keys(60'000);
  for (size_t i = 1; i < 100; ++i) {
    ASSERT_EQ(std::hash<std::string>()(keys[i]), std::hash<std::string>()(keys[0]));
  }
  json::object message;
  for (size_t i = 0; i < keys.size(); ++i) message[keys[i]] = i;
  TemplateInputs in;
  in.messages = json::array{std::move(message)};
  in.extra["last"] = keys.back();
  in.limits.max_time = kNever;
  Outcome o = run("{{ messages[0][last] }}", in);
  EXPECT_EQ(o.error, "");
  EXPECT_EQ(o.output, 5u);       // 59999
  EXPECT_LT(o.seconds, 5);       // 0.1 s; with std::hash 57 s
  EXPECT_LT(o.steps, 500'000u);  // a few for each key
}

// ---- random templates

class Generator {
 public:
  explicit Generator(uint64_t seed) : rng_(seed) {}

  std::string text() {
    std::string out;
    for (int i = 0, n = 1 + pick(4); i < n; ++i) out += statement(0);
    return out;
  }

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<uint64_t>(n)); }
  template <size_t n>
  std::string one_of(const char* const (&of)[n]) {
    return of[pick(n)];
  }
  std::string name() { return one_of({"a", "b", "ns.x", "i", "s", "l", "messages", "n"}); }
  std::string target() { return one_of({"a", "b", "ns.x", "s", "l"}); }
  std::string number() {
    return one_of({"0", "1", "-1", "2", "7", "60", "1000", "99999", "10**9", "2.5", "1e300"});
  }

  std::string expression(int depth) {
    if (depth > 4) return pick(2) ? name() : number();
    auto sub = [&] { return expression(depth + 1); };
    switch (pick(14)) {
      case 0:
        return number();
      case 1:
        return one_of({"'x'", "''", "'{}'", "'%s'", "'\xc3\xa9 <a>'", "'a.b'", "'\\n'"});
      case 2:
        return "[" + sub() + ", " + sub() + "]";
      case 3:
        return "(" + sub() + ", " + sub() + ")";
      case 4:
        return "{" + sub() + ": " + sub() + "}";
      case 5:
      case 6:
        return "(" + sub() +
               one_of({" + ", " * ", " ~ ", " - ", " % ", " // ", " ** ", " == ", " < ", " in ",
                       " and ", " or "}) +
               sub() + ")";
      case 7:
      case 8:
        return "(" + sub() + ")|" +
               one_of({"list",   "string", "tojson",  "length", "sort",      "unique",   "join",
                       "upper",  "title",  "reverse", "first",  "last",      "sum",      "trim",
                       "escape", "items",  "int",     "float",  "urlencode", "indent",   "max",
                       "safe",   "e",      "abs",     "round",  "wordcount", "striptags"});
      case 9:
        return "(" + sub() + ")|" +
               one_of({"map", "select", "batch", "slice", "replace", "join", "default", "groupby",
                       "truncate", "center", "format"}) +
               "(" + sub() + ", " + sub() + ")";
      case 10:
        return "(" + sub() + ")." +
               one_of({"split", "replace", "format", "join", "strip", "count", "find", "get",
                       "items", "startswith", "ljust", "zfill", "index", "splitlines"}) +
               "(" + (pick(2) ? sub() : "") + (pick(3) ? "" : ", " + sub()) + ")";
      case 11:
        return "(" + sub() + ")[" + (pick(2) ? sub() : "::" + number()) + "]";
      case 12:
        return one_of({"range(", "dict(", "namespace(", "f(", "cycler("}) + sub() + ")";
      default:
        return name();
    }
  }

  std::string statement(int depth) {
    if (depth > 3) return "{{ " + expression(0) + " }}";
    auto body = [&] { return statement(depth + 1) + statement(depth + 1); };
    switch (pick(8)) {
      case 0:
        return "{% set ns = namespace(x=" + expression(2) + ") %}";
      case 1:
        return "{% set " + target() + " = " + expression(0) + " %}";
      case 2:
        return "{% for i in " + (pick(2) ? "range(" + number() + ")" : expression(1)) +
               (pick(4) ? "" : " if " + expression(2)) + (pick(5) ? "" : " recursive") + " %}" +
               body() + "{% endfor %}";
      case 3:
        return "{% if " + expression(1) + " %}" + body() + "{% else %}" + body() + "{% endif %}";
      case 4:
        return "{% macro f(a) %}" + body() + "{% endmacro %}";
      case 5:
        return "{% set " + target() + " %}" + body() + "{% endset %}";
      case 6:
        return "{% filter " + one_of({"upper", "trim", "escape", "indent"}) + " %}" + body() +
               "{% endfilter %}";
      default:
        return "{{ " + expression(0) + " }}";
    }
  }

  std::mt19937_64 rng_;
};

TEST(TemplateBombs, RandomTemplates) {
  TemplateInputs in = small_inputs();
  int count = full() ? 200'000 : 4'000, rendered = 0;
  double slowest = 0;
  size_t largest = 0;
  for (int seed = 0; seed < count; ++seed) {
    // Most under small limits, so that many run to them; every 16th as the server has them.
    bool small = seed % 16 != 0;
    in.limits = {};
    if (small) in.limits.max_steps = 20'000, in.limits.max_output_bytes = 64 << 10;
    std::string source = Generator(static_cast<uint64_t>(seed)).text();
    Outcome o = run(source, in);
    ASSERT_LE(o.output, in.limits.max_output_bytes) << seed << "\n" << source;
    ASSERT_LE(o.steps, in.limits.max_steps + kMiB) << seed << "\n" << source;
    ASSERT_LT(o.bytes, 64 * kMiB) << seed << "\n" << source;
    ASSERT_LT(o.seconds, 5) << seed << "\n" << source;
    rendered += o.error.empty();
    slowest = std::max(slowest, o.seconds);
    largest = std::max(largest, o.bytes);
  }
  EXPECT_GT(rendered, count / 50);  // the generator makes templates that work, too
  std::printf("%d templates, %d rendered: slowest %.1f ms, largest %.1f MiB\n", count, rendered,
              slowest * 1e3, static_cast<double>(largest) / kMiB);
}

}  // namespace
}  // namespace sluice
