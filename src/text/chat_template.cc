#include "text/chat_template.h"

#include <algorithm>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/parser.h"

namespace sluice {

namespace {
constexpr size_t kMaxSource = 1u << 20;

// One line of bounded length: templates raise what they like.
Error template_error(const jinja::TemplateError& e) {
  constexpr size_t kMaxMessage = 500;
  std::string message = e.message.substr(0, kMaxMessage);
  while (!valid_utf8(message)) message.pop_back();
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  if (e.message.size() > kMaxMessage) message += "...";
  return Error{400, strf("chat template: %s (line %d)", message.c_str(), e.line)};
}

// Fields that strftime may use as indices, kept in range.
std::tm sane(std::tm t) {
  t.tm_sec = std::clamp(t.tm_sec, 0, 60);
  t.tm_min = std::clamp(t.tm_min, 0, 59);
  t.tm_hour = std::clamp(t.tm_hour, 0, 23);
  t.tm_mday = std::clamp(t.tm_mday, 1, 31);
  t.tm_mon = std::clamp(t.tm_mon, 0, 11);
  t.tm_year = std::clamp(t.tm_year, -1900, 8099);
  t.tm_wday = std::clamp(t.tm_wday, 0, 6);
  t.tm_yday = std::clamp(t.tm_yday, 0, 365);
  return t;
}

std::vector<TextSegment> segments_of(const jinja::Text& text) {
  std::vector<TextSegment> out;
  size_t begin = 0;
  for (const jinja::Text::Run& run : text.runs()) {
    out.push_back({text.str().substr(begin, run.end - begin), run.trusted});
    begin = run.end;
  }
  return out;
}
}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  if (source.size() > kMaxSource) return Error{400, "chat template: larger than 1 MiB"};
  if (!valid_utf8(source)) return Error{400, "chat template: not valid UTF-8"};
  try {
    ChatTemplate t;
    t.program_ = std::make_shared<const jinja::Program>(jinja::parse_template(source));
    t.source_ = std::make_shared<const std::string>(std::move(source));
    return t;
  } catch (const jinja::TemplateError& e) {
    return template_error(e);
  }
}

Result<std::vector<TextSegment>> ChatTemplate::render(const TemplateInputs& in,
                                                      TemplateCost* cost) const {
  const TemplateLimits& limits = in.limits;
  RealClock real;
  jinja::Meter meter(limits.max_steps, limits.max_memory_bytes, in.clock ? in.clock : &real,
                     limits.max_time);
  uint64_t steps = limits.max_steps;
  auto note_cost = [&] {
    if (cost) cost->steps = steps - meter.steps_left();
  };
  try {
    jinja::Machine machine(meter, *program_, {limits.max_call_depth, limits.max_output_bytes},
                           sane(in.now));
    auto token = [&](std::string_view name, const std::string& text) {
      machine.define(name, jinja::make_string(meter, text, true));
    };
    token("bos_token", in.bos_token);
    token("eos_token", in.eos_token);
    for (const auto& [name, text] : in.special_tokens) token(name, text);
    for (const auto& e : in.extra) {
      machine.define(std::string_view(e.key()), jinja::from_json(meter, e.value()));
    }
    machine.define("messages", jinja::from_json(meter, in.messages));
    machine.define("tools", jinja::from_json(meter, in.tools));
    machine.define("documents", jinja::from_json(meter, in.documents));
    machine.define("add_generation_prompt", jinja::Value::boolean(in.add_generation_prompt));
    size_t input = limits.max_memory_bytes - meter.bytes_left();
    meter.rebase(input / 8, limits.max_new_bytes + 8 * input);
    steps += input / 8;
    std::vector<TextSegment> out = segments_of(machine.run());
    note_cost();
    return out;
  } catch (const jinja::TemplateError& e) {
    note_cost();
    return template_error(e);
  }
}

std::string joined(const std::vector<TextSegment>& segments) {
  std::string out;
  for (const TextSegment& s : segments) out += s.text;
  return out;
}

}  // namespace sluice
