// How a generation's outputs leave: as a stream of chunks or one answer, with their usage.
#include <algorithm>

#include "base/str.h"
#include "server/generation.h"
#include "server/write_json.h"

namespace sluice {

namespace {

const char* finish_reason(const Choice& c) {
  if (c.finish != Finish::stop) return "length";
  return c.output && c.output->called() ? "tool_calls" : "stop";
}

}  // namespace

std::string Generation::fingerprint() const { return "sluice-" + service_.options().version; }

void Generation::begin_stream() {
  if (streaming_) return;
  HttpResponse head;
  head.content_type = answer_->stream_type();
  head.headers = {{"Cache-Control", "no-cache"}};
  Service::add_request_id(call_, head);
  service_.meters().on_response(200);
  call_.out->start(std::move(head));
  streaming_ = true;
}

void Generation::write(std::string_view bytes) {
  last_write_ = service_.clock().now();
  if (!log_) return call_.out->write(bytes);
  log_->append(bytes);
  pump();
}

void Generation::ping(Time before) {
  if (over_ || !fields_.stream || last_write_ > before || answer_->ping().empty()) return;
  begin_stream();
  last_write_ = service_.clock().now();
  call_.out->write(answer_->ping());
}

void Generation::write_chunk(Choice& c) {
  begin_stream();
  std::string out;
  if (answer_->own_events()) {
    answer_->append_event(out, *this, c);
    c.text.clear(), c.tokens.clear(), c.scores.clear();
    return write(out);
  }
  auto close = [&](const char* finish, int made) {
    out += ",\"finish_reason\":";
    out += finish ? strf("\"%s\"", finish) : "null";
    if (finish) out += ",\"stop_reason\":" + json::serialize(c.stop_reason);
    out += "}]";
    answer_->append_beside(out, *this, c);
    if (fields_.continuous_usage) append_usage_so_far(out, c, made);
    if (fields_.include_usage && !fields_.continuous_usage) out += ",\"usage\":null";
    out += "}\n\n";
  };
  auto open = [&] { out += prefix_ + strf("{\"index\":%d,", c.index); };
  if (!c.begun) {
    c.begun = true;
    std::string first;
    answer_->append_first(first, *this, c);
    if (!first.empty()) {
      open();
      out += first;
      close(nullptr, 0);
    }
  }
  bool some = !c.text.empty() || !c.tokens.empty() || (c.output && c.output->pending());
  if (some || (c.finish != Finish::none && !c.scores.empty())) {
    open();
    answer_->append_chunk(out, *this, c);
    close(nullptr, c.num_output);
    c.text.clear(), c.tokens.clear(), c.scores.clear();
  }
  if (c.finish != Finish::none) {
    open();
    answer_->append_chunk(out, *this, c);
    close(finish_reason(c), c.num_output);
  }
  write(out);
}

// Token counts of one choice and its prompt, as vLLM sends them in the middle of a stream.
void Generation::append_usage_so_far(std::string& out, const Choice& c, int made) const {
  size_t in = prompts_[c.prompt].tokens->size(), num = score_only ? 0 : static_cast<size_t>(made);
  out += strf(",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu}",
              in, num, in + num);
}

void Generation::append_usage(std::string& out) const {
  size_t in = 0, made = 0, cached = 0;
  for (const PromptState& p : prompts_) {
    in += p.tokens->size();
    cached += static_cast<size_t>(p.num_cached);
  }
  for (const Choice& c : choices_) made += static_cast<size_t>(score_only ? 0 : c.num_output);
  made += num_dropped_;
  out += strf(
      ",\"usage\":{\"prompt_tokens\":%zu,\"completion_tokens\":%zu,\"total_tokens\":%zu,"
      "\"prompt_tokens_details\":{\"cached_tokens\":%zu}}",
      in, made, in + made, cached);
}

// For the access log.
void Generation::count_usage() {
  CallUsage u;
  for (const PromptState& p : prompts_) u.prompt += p.tokens ? p.tokens->size() : 0;  // half begun
  for (const Choice& c : choices_) u.output += static_cast<size_t>(score_only ? 0 : c.num_output);
  u.output += num_dropped_;
  if (!score_only) u.first = first_token_;
  call_.usage = u;
}

// best_of: of every prompt's choices the likeliest stay, the likeliest first. Usage counts them
// all. Answers of a beam search are in order: their sums are all 0 here.
void Generation::keep_best() {
  auto all = static_cast<ptrdiff_t>(fields_.n), kept = static_cast<ptrdiff_t>(fields_.num_kept);
  std::vector<Choice> best;
  for (auto first = choices_.begin(); first != choices_.end(); first += all) {
    std::stable_sort(first, first + all,
                     [](const Choice& a, const Choice& b) { return a.logprob > b.logprob; });
    for (auto c = first; c != first + all; ++c) {
      if (c - first >= kept) {
        num_dropped_ += static_cast<size_t>(score_only ? 0 : c->num_output);
        continue;
      }
      c->index = static_cast<int>(best.size());
      best.push_back(std::move(*c));
    }
  }
  choices_ = std::move(best);
}

// For the story of the next turn.
void Generation::keep_turn() {
  if (turns.empty()) return;
  const ChatOutput* output = choices_[0].output.get();
  service_.turns().add({service_.keys().tenant(call_.key, fields_.cache_salt), prompts_[0].id,
                        turns.size(), turns.back(), prompts_[0].tokens, std::move(turn_output_),
                        output ? output->num_reasoning() : 0});
}

void Generation::finish() {
  over_ = true;
  keep_turn();
  if (fields_.num_kept > 0) keep_best();
  count_usage();
  if (fields_.stream) {
    begin_stream();
    std::string out;
    if (fields_.include_usage) {
      out = prefix_ + "]";
      append_usage(out);
      out += "}\n\n";
    }
    if (!answer_->own_events()) out += "data: [DONE]\n\n";
    service_.log(call_, 200);
    write(out);
    return end_stream();
  }
  service_.reply(call_, {}, produce(shared_from_this(), [this](std::string& out) {
                   std::optional<PieceWriter> own = answer_->body(out, *this, choices_);
                   return own ? std::move(*own) : write_answer(out);
                 }));
}

PieceWriter Generation::write_answer(std::string& out) {
  out += "{\"id\":";
  append_json(out, id_);
  out += strf(",\"object\":\"%s\",\"created\":%lld,\"model\":", answer_->object(false),
              static_cast<long long>(created_));
  append_json(out, service_.options().model_names[0]);
  out += ",\"system_fingerprint\":";
  append_json(out, fingerprint());
  out += ",\"choices\":[";
  for (Choice& c : choices_) {
    out += c.index > 0 ? ",{" : "{";
    co_await answer_->choice(out, *this, c);
    out += strf(",\"finish_reason\":\"%s\"", finish_reason(c));
    out += ",\"stop_reason\":" + json::serialize(c.stop_reason) + '}';
    c.text = {}, c.tokens = {}, c.scores = {};
    co_await pause_if_full(out);
  }
  out += ']';
  append_usage(out);
  co_await answer_->extra(out, *this);
  out += '}';
}

void Generation::fail(const ApiError& error) {
  if (ended_) return;
  over_ = true;
  cancel();
  ticket_.reset();
  if (!prompts_.empty()) count_usage();
  if (!streaming_) {
    ended_ = true;
    if (log_) service_.forget(id_);
    return service_.fail(call_, error);
  }
  service_.log(call_, 200, error.code.empty() ? "failed" : error.code.c_str());
  std::string out;
  answer_->append_error(out, *this, error);
  write(out);
  end_stream();
}
}  // namespace sluice
