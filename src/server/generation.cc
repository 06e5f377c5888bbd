#include "server/generation.h"

#include <algorithm>
#include <ctime>

#include "base/failure.h"
#include "base/str.h"
#include "core/prefix_index.h"
#include "exec/sampler.h"
#include "server/write_json.h"

namespace sluice {

namespace {

const ApiError kCancelled{503, "the request was cancelled: the server stops", "", "cancelled"};

}  // namespace

void Outbox::push(Delivery delivery) {
  std::lock_guard lock(mutex_);
  items_.push_back(std::move(delivery));
  if (items_.size() > 1) return;
  try {
    post_([self = shared_from_this()] { self->drain(); });
  } catch (...) {
    items_.clear();
    throw;
  }
}

void Outbox::drain() {
  {
    std::lock_guard lock(mutex_);
    batch_.swap(items_);
  }
  for (Delivery& d : batch_) {
    try {
      const TraceSpan span(track_, &d.to->service().session().clock(), "send");
      d.to->take(d);
    } catch (...) {
      log_exception("request failed");
      d.to->lose();
    }
  }
  batch_.clear();
}

GenerationSink::GenerationSink(std::shared_ptr<Generation> to,
                               size_t prompt,
                               std::unique_ptr<Ticket> ticket,
                               LeaseId lease)
    : to_(std::move(to)),
      outbox_(to_->service().outbox(to_->thread())),
      meters_(to_->service().meters()),
      prompt_(prompt),
      ticket_(std::move(ticket)),
      lease_(lease),
      begun_(static_cast<size_t>(to_->fields().n)) {
  meters_.on_submit(to_->service().clock().now());
}

GenerationSink::~GenerationSink() { end(); }

void GenerationSink::end() noexcept {
  ticket_.reset();
  if (LeaseId lease = std::exchange(lease_, 0); lease != 0)
    to_->service().options().transfer->drop(lease);
  if (!std::exchange(ended_, true)) meters_.on_terminal();
}

void GenerationSink::on_event(const Event& e, std::span<const TopLogprob> top) {
  if ((e.token != kNoToken || e.finish != Finish::none) && !begun_[e.choice]) {
    begun_[e.choice] = true;
    ticket_->release_tokens();
    ticket_->release_sequence();
  }
  if (e.last && lease_ != 0 && (e.finish == Finish::stop || e.finish == Finish::length))
    to_->service().options().transfer->seal(std::exchange(lease_, 0));
  if (e.last) end();
  Delivery d{to_, prompt_, {}, e, {}, {}, 0};
  if (e.num_top > 0) d.top.assign(top.begin() + e.top_at, top.begin() + e.top_at + e.num_top);
  if (e.num_prompt > 0)
    d.prompt_top.assign(top.begin() + e.prompt_at, top.begin() + e.prompt_at + e.num_prompt);
  outbox_->push(std::move(d));
}

void GenerationSink::on_refused(const Error& error) {
  end();
  outbox_->push({to_, prompt_, error, {}, {}, {}, 0});
}

void GenerationSink::on_late(double retry_after) {
  end();
  outbox_->push({to_, prompt_, Error{429, late_message(retry_after)}, {}, {}, {}, retry_after});
}

Generation::Generation(Service& service,
                       Call call,
                       GenerateFields fields,
                       std::unique_ptr<Answer> answer)
    : service_(service),
      call_(std::move(call)),
      fields_(std::move(fields)),
      answer_(std::move(answer)),
      id_(service.new_id(answer_->id_prefix())),
      created_(std::time(nullptr)),
      thread_(call_.out->thread()) {}

// Ids within the vocabulary, prompts within the context.
Refusal Generation::check(const std::vector<std::vector<Token>>& prompts) const {
  int vocab = service_.session().model().shape().vocab;
  bool pooled = fields_.pooling != Pooling::none;
  int max_len = service_.session().engine().config().max_len;
  const char* name = pooled ? "input" : "prompt";
  auto known = [&](const std::vector<Token>& ids) {
    return std::all_of(ids.begin(), ids.end(), [&](Token t) { return t >= 0 && t < vocab; });
  };
  auto wrong = [&](const char* param) {
    return ApiError{400, strf("%s holds an id that is not below %d", param, vocab), param, ""};
  };
  if (!known(fields_.stop_token_ids)) return wrong("stop_token_ids");
  if (!known(fields_.sampling.allowed)) return wrong("allowed_token_ids");
  if (!known(fields_.sampling.logprob_ids)) return wrong("logprob_token_ids");
  for (const auto& [id, bias] : fields_.sampling.logit_bias) {
    if (id >= vocab) return wrong("logit_bias");
  }
  for (const std::vector<Token>& p : prompts) {
    if (p.empty()) return ApiError{400, strf("the %s is empty", name), name, ""};
    if (!known(p)) return wrong(name);
    if (static_cast<int64_t>(p.size()) > max_len - (pooled ? 0 : 1)) {
      return ApiError{
          400,
          // Clients know this error by the first words.
          strf("this model's maximum context length is %d tokens and the %s has %zu: shorten it",
               max_len, name, p.size()),
          name, "context_length_exceeded"};
    }
  }
  return {};
}

Request Generation::make_request(size_t prompt) const {
  Request r;
  const Tokenizer* tokenizer = service_.session().tokenizer();
  auto spec = std::make_shared<SamplingSpec>(fields_.sampling);
  if (tokenizer && !fields_.ignore_eos)
    r.stop.tokens.assign(tokenizer->eog().begin(), tokenizer->eog().end());
  r.stop.tokens.insert(r.stop.tokens.end(), fields_.stop_token_ids.begin(),
                       fields_.stop_token_ids.end());
  r.stop.strings = fields_.stop;
  if (spec->min_tokens > 0) spec->banned_until_min = r.stop.tokens;
  if (fields_.num_kept > 0 && !fields_.beams) spec->num_logprobs = std::max(spec->num_logprobs, 0);
  r.sampling = std::move(spec);
  r.constraint = constraint_;
  r.thinking = fields_.thinking;
  r.prompt = prompts_[prompt].tokens;
  int max_output =
      service_.session().engine().config().max_len - static_cast<int>(r.prompt->size());
  r.pooling = fields_.pooling;
  bool pooled = r.pooling != Pooling::none;
  r.max_new = pooled ? 0 : std::clamp(fields_.max_tokens.value_or(max_output), 1, max_output);
  r.n = fields_.n;
  r.beams = fields_.beams;
  r.priority = fields_.priority;
  r.tenant = service_.keys().tenant(call_.key, fields_.cache_salt);
  r.account = call_.key < 0 ? 0 : static_cast<TenantId>(call_.key) + 1;
  if (const Time end = deadline(); end > Time{0}) r.deadline = end;
  return r;
}

Time Generation::deadline() const {
  double limit = service_.options().request_timeout, own = fields_.timeout;
  double timeout = own > 0 && limit > 0 ? std::min(own, limit) : std::max(own, limit);
  return timeout > 0 ? started_ + Time(static_cast<int64_t>(timeout * 1e9)) : Time{0};
}

// A word is forbidden as it stands and as it stands after a space.
Refusal Generation::resolve_bad_words() {
  const Tokenizer* tokenizer = service_.session().tokenizer();
  auto wrong = [](std::string message) {
    return ApiError{400, std::move(message), "bad_words", ""};
  };
  if (!tokenizer && !fields_.bad_words.empty()) return wrong("the model has no vocabulary");
  for (const std::string& word : fields_.bad_words) {
    for (const std::string& form : {word, " " + word}) {
      Result<std::vector<Token>> ids = tokenizer->encode(form);
      if (!ids) return wrong(ids.error().message);
      if (ids->empty() || ids->size() > kMaxBadSequence)
        return wrong(strf("the bad word %s must have 1 to %zu tokens", quote(word).c_str(),
                          kMaxBadSequence));
      fields_.sampling.bad_sequences.push_back(std::move(*ids));
    }
  }
  return {};
}

void Generation::start(std::vector<std::vector<Token>> prompts) {
  if (call_.heavy) {  // events come on the io thread: the rest happens there
    call_.heavy = false;
    service_.post(thread(), [self = shared_from_this(), p = std::move(prompts)]() mutable {
      self->start(std::move(p));
    });
    return;
  }
  try {
    if (fields_.constraint) return compile(std::move(prompts));
    begin(std::move(prompts));
  } catch (...) {
    log_exception("request failed");
    lose();
  }
}

// The constraint first, which may take another thread some time.
void Generation::compile(std::vector<std::vector<Token>> prompts) {
  const std::string& name = fields_.constraint->name;
  auto refuse = [&](int status, std::string message) {
    if (status == 429) service_.meters().refusals.add();
    service_.fail(call_, {status, std::move(message), status == 429 ? "" : name,
                          status == 429 ? "queue_full" : ""});
  };
  if (!service_.session().tokenizer())
    return refuse(400,
                  name + ": the model has no vocabulary, so its answers cannot be constrained");
  size_t held = 0;
  for (const std::vector<Token>& p : prompts) held += p.size() * sizeof(Token);
  auto done = [self = shared_from_this(),
               p = std::move(prompts)](const ConstraintCache::Answer& answer) mutable {
    try {
      self->service_.post(self->thread(), [self, answer, p = std::move(p)]() mutable {
        self->go_on(answer, std::move(p));
      });
    } catch (...) {
      log_exception("request failed");
      self->lose();
    }
  };
  if (!service_.constraints().get(fields_.constraint->source, held, std::move(done)))
    refuse(429, "too many constraints wait to be compiled: try again later");
}

void Generation::go_on(const ConstraintCache::Answer& answer,
                       std::vector<std::vector<Token>> prompts) {
  try {
    if (take_constraint(answer)) begin(std::move(prompts));
  } catch (...) {
    log_exception("request failed");
    lose();
  }
}

// False: it was refused, and the call is answered.
bool Generation::take_constraint(const ConstraintCache::Answer& answer) {
  Meters& m = service_.meters();
  (answer.found ? m.constraint_hits : m.constraint_misses).add();
  if (!answer.found) m.compile_seconds.observe(seconds(answer.took));
  compile_ = answer.took;
  if (!answer.compiled->has_value()) {
    const Error& e = answer.compiled->error();
    const std::string& name = fields_.constraint->name;
    bool theirs = e.code < 500;
    bool named = !theirs || e.message.starts_with(name);
    service_.fail(call_, {e.code, named ? e.message : name + ": " + e.message, theirs ? name : "",
                          theirs ? "" : "out_of_memory"});
    return false;
  }
  constraint_ = **answer.compiled;
  m.on_constrained(name_of(constrain::kConstraintKinds, fields_.constraint->source.kind));
  fields_.constraint->source.text = {};  // up to 1 MiB that nobody reads any more
  return true;
}

void Generation::begin(std::vector<std::vector<Token>> prompts) {
  service_.note_unknown(fields_.unknown);
  if (fields_.truncate_prompt) {
    int most = service_.session().engine().config().max_len;
    if (fields_.pooling == Pooling::none) --most;
    auto keep = static_cast<size_t>(*fields_.truncate_prompt < 0 ? most : *fields_.truncate_prompt);
    for (std::vector<Token>& p : prompts) {
      if (p.size() <= keep) continue;
      auto cut = static_cast<ptrdiff_t>(p.size() - keep);
      p.erase(fields_.truncate_left ? p.begin() : p.end() - cut,
              fields_.truncate_left ? p.begin() + cut : p.end());
    }
  }
  Refusal refused = resolve_bad_words();
  if (!refused) refused = check(prompts);
  if (!refused && fields_.transfer.any()) refused = check_transfer(prompts.size());
  if (fields_.resumable && service_.options().resume_seconds <= 0)
    refused = ApiError{400, "streams cannot be resumed here (serve --resume-seconds)",
                       "stream_options", "not_enabled"};
  if (!refused) refused = admit(load(prompts));
  if (refused) {
    if (refused->status == 429) service_.meters().refusals.add();
    return service_.fail(call_, *refused);
  }
  if (!fields_.has_seed) fields_.sampling.seed = service_.new_seed();
  make_choices(std::move(prompts));
  last_write_ = service_.clock().now();
  started_ = service_.session().clock().now();
  prefix_ = "data: {\"id\":";
  append_json(prefix_, id_);
  prefix_ += strf(",\"object\":\"%s\",\"created\":%lld,\"model\":", answer_->object(true),
                  static_cast<long long>(created_));
  append_json(prefix_, service_.options().model_names[0]);
  prefix_ += ",\"system_fingerprint\":";
  append_json(prefix_, fingerprint());
  prefix_ += ",\"choices\":[";
  if (fields_.stream && fields_.resumable) log_.emplace(id_, kMaxStreamBytes);
  service_.live(shared_from_this());
  if (log_ && !service_.keep(id_, shared_from_this())) {
    service_.meters().refusals.add();
    over_ = ended_ = true;
    return service_.fail(
        call_, {429, "too many resumable streams are kept: try again later", "", "queue_full"});
  }
  watch_connection();
  if (fields_.transfer.from) return fetch_prompt();
  submit_more();
}

// Bytes are those of the JSON that may come, when it is kept until it is whole.
Load Generation::load(const std::vector<std::vector<Token>>& prompts) const {
  constexpr int64_t kTextBytes = 8, kIdBytes = 8, kScoreBytes = 100;  // per token, on average
  constexpr int kUsual = 4096;  // tokens of an answer without max_tokens; most are shorter
  const SamplingSpec& s = fields_.sampling;
  bool pooled = fields_.pooling != Pooling::none;
  int max_len = service_.session().engine().config().max_len;
  auto scored = [&](int top) { return top < 0 ? 0 : (1 + top) * kScoreBytes; };
  const int num_ids = static_cast<int>(s.logprob_ids.size());
  const int num_scored = num_ids > 0 ? std::max(s.num_logprobs, num_ids) : s.num_logprobs;
  int64_t per_token = kTextBytes + (fields_.return_token_ids ? kIdBytes : 0);
  Load all;
  for (const std::vector<Token>& p : prompts) {
    auto len = static_cast<int64_t>(p.size());
    int64_t max_output = std::max<int64_t>(max_len - len, 1);
    int64_t made = pooled ? 0 : std::min<int64_t>(fields_.max_tokens.value_or(kUsual), max_output);
    int64_t prompt = len * (per_token + scored(s.prompt_logprobs));
    all.sequences += fields_.n;
    all.tokens += len;
    all.bytes += fields_.n * made * (per_token + scored(num_scored));
    if (echo || s.prompt_logprobs >= 0 || fields_.return_token_ids) all.bytes += prompt;
    if (pooled) all.bytes += int64_t{service_.session().model().shape().hidden} * 12;
  }
  if (fields_.stream) all.bytes = 0;
  all.bytes += static_cast<int64_t>(answer_->held_bytes());
  return all;
}

// The engine has some of a large request's prompts at a time; the others wait here, so that what
// comes from other clients meanwhile is served between them.
Refusal Generation::admit(Load all) {
  AdmissionControl& admission = service_.admission();
  if (Refusal refused = admission.check(all)) return refused;
  auto slots = static_cast<int64_t>(service_.options().request_share *
                                    service_.session().engine().config().max_seqs);
  if (int64_t most = admission.limits().total.sequences; most > 0)
    slots = std::min(slots, most / 2);
  window_ = static_cast<size_t>(std::max<int64_t>(slots / fields_.n, 1));
  all.sequences = std::min(all.sequences, static_cast<int64_t>(window_) * fields_.n);
  Refusal refused = admission.admit(call_.key, all);
  if (!refused) ticket_.emplace(admission, call_.key, all);
  return refused;
}

void Generation::make_choices(std::vector<std::vector<Token>> prompts) {
  const Tokenizer* tokenizer = service_.session().tokenizer();
  for (size_t p = 0; p < prompts.size(); ++p) {
    PromptState& state = prompts_.emplace_back();
    bool begins = tokenizer && !echo &&
                  std::all_of(prompts[p].begin(), prompts[p].end(),
                              [&](Token t) { return tokenizer->is_control(t); });
    TextStream::Options text;
    text.skip_special = fields_.skip_special;
    text.include_stop = fields_.include_stop;
    text.keep = answer_->kept_tokens();
    // What a constraint allowed is shown byte for byte.
    text.strip_leading_space = begins && tokenizer->adds_space() && !constraint_;
    if (echo && p < echo_texts.size() && echo_texts[p]) {
      state.text = std::move(*echo_texts[p]);
    } else if (echo && tokenizer) {
      state.text =
          detokenize(*tokenizer, prompts[p],
                     {.skip_special = false, .strip_leading_space = tokenizer->adds_space()});
    }
    state.tokens = std::make_shared<const std::vector<Token>>(std::move(prompts[p]));
    for (int i = 0; i < fields_.n; ++i) {
      Choice& c = choices_.emplace_back();
      c.index = static_cast<int>(choices_.size()) - 1;
      c.prompt = p;
      c.shows_prompt = fields_.stream && fields_.return_token_ids;
      c.output = answer_->make_output(service_);
      if (tokenizer && fields_.pooling == Pooling::none) c.stream.emplace(*tokenizer, text);
    }
  }
}

void Generation::submit_more() {
  if (over_) return;
  if (cancelled_) {
    if (num_done_ == num_submitted_) fail(kCancelled);
    return;
  }
  while (num_submitted_ < prompts_.size() && num_submitted_ - num_done_ < window_)
    submit(num_submitted_++);
}

// Tells who routes requests by KV events which block ends the prompt. A recording without text
// files blocks under hashes of pseudonyms, which are not known here.
void Generation::name_block(const Request& request) {
  const FlightRecorder* recorder = service_.session().flight_recorder();
  if (prompts_.size() == 1 && !request.block_hashes.empty() && (!recorder || recorder->has_text()))
    call_.out->add_header(kKvBlockHeader, std::to_string(request.block_hashes.back().a));
}

void Generation::submit(size_t prompt) {
  PromptState& p = prompts_[prompt];
  auto tokens = static_cast<int64_t>(p.tokens->size());
  if (fields_.transfer.send) {
    lease_ = service_.options().transfer->lease(*p.tokens, fields_.transfer.name);
    if (!lease_) return fail({400, "another request has a lease of this name", "", "lease_taken"});
  }
  std::shared_ptr<GenerationSink> sink;  // ends the lease
  try {
    sink = std::make_shared<GenerationSink>(shared_from_this(), prompt,
                                            ticket_->split({fields_.n, tokens, 0}),
                                            lease_ ? lease_->id : 0);
  } catch (...) {
    if (lease_) service_.options().transfer->drop(lease_->id);
    throw;
  }
  Request request = make_request(prompt);
  const bool events = service_.kv_events() != nullptr;
  if (events || lease_) request.block_hashes = prompt_blocks(prompt).hashes;
  if (events) name_block(request);
  if (lease_) request.lease = lease_->id;
  Time now = service_.session().clock().now();
  Recorder::Submission told{0,
                            call_.key,
                            request.n,
                            static_cast<int>(tokens),
                            request.max_new,
                            fields_.stream,
                            now - (service_.clock().now() - call_.received),
                            now,
                            answer_key(id_),
                            {},
                            compile_};
  told.trace = call_.trace.trace;
  told.fetched = fetched_;
  if (fields_.constraint) told.constraint = fields_.constraint->source.kind;
  if (!turns.empty()) told.turn = service_.turns().compare(request.tenant, turns, *p.tokens);
  told.id = p.id = service_.session().engine().submit(std::move(request), std::move(sink));
  service_.recorder().on_submit(told);
}

void Generation::cancel() noexcept {
  cancelled_ = true;
  try {
    cancel_missed_ = false;
    for (const PromptState& p : prompts_) {
      if (p.id != 0) service_.session().engine().cancel(p.id);
    }
  } catch (...) {
    cancel_missed_ = true;
  }
}

void Generation::lose() noexcept {
  try {
    fail(current_api_error());
  } catch (...) {
    call_.out->abort();
  }
}

void Generation::take(Delivery& d) {
  if (cancel_missed_) cancel();
  if (d.refused) {
    ++num_done_;
    service_.recorder().on_refused(prompts_[d.prompt].id, service_.session().clock().now());
    if (!over_) {
      const double wait = d.retry_after;
      std::string code = d.refused->code != 429 ? "" : wait > 0 ? "would_be_late" : "queue_full";
      fail({d.refused->code, d.refused->message, "", code, wait});
    }
    return;
  }
  on_event(d);
  if (!d.event.last) return;
  service_.recorder().on_delivered(prompts_[d.prompt].id, service_.session().clock().now());
  submit_more();
}

void Generation::on_event(Delivery& d) {
  const Event& e = d.event;
  Choice& c = choices_[d.prompt * static_cast<size_t>(fields_.n) + e.choice];
  PromptState& p = prompts_[d.prompt];
  append_scores(d.prompt_top, p.scores);
  Meters& m = service_.meters();
  if (e.token != kNoToken) {
    ++c.num_output;
    m.output_tokens.add();
    if (first_token_.count() == 0) first_token_ = service_.clock().now();
    if (c.last_token.count() == 0) {
      m.ttft.observe(seconds(e.timing.first_token - started_));
    } else {
      m.itl.observe(seconds(e.timing.last_token - c.last_token));
    }
    c.last_token = e.timing.last_token;
    if (!turns.empty() && c.index == 0) turn_output_.push_back(e.token);
  }
  p.num_cached = std::max(p.num_cached, e.timing.num_cached);
  if (e.finish != Finish::none) {
    m.on_finish(e, static_cast<int>(p.tokens->size()), c.num_output, e.choice == 0);
  }
  if (e.last) ++num_done_;
  if (over_) return;
  if (e.finish == Finish::failed) return fail({500, "the device failed", "", "device_failed"});
  if (e.finish == Finish::deadline)
    return fail({504, "the request's time was up", "", "deadline_exceeded"});
  if (e.finish == Finish::cancelled) return fail(kCancelled);
  if (e.finish == Finish::constraint) {
    const std::string& name =
        fields_.constraint ? fields_.constraint->name : fields_.thinking_budget->name;
    return fail({400,
                 name + ": no token of this model could follow, or finding one took too much work",
                 name, "constraint_failed"});
  }
  if (!score_only) {
    if (e.token != kNoToken) {
      if (fields_.return_token_ids) c.tokens.push_back(e.token);
      if (fields_.num_kept > 0 && !d.top.empty()) c.logprob += double{d.top[0].logprob};
      if (fields_.sampling.num_logprobs >= 0 && (!e.is_end_token || answer_->scores_end()))
        append_scores(d.top, c.scores);
      if (e.is_end_token && std::find(fields_.stop_token_ids.begin(), fields_.stop_token_ids.end(),
                                      e.token) != fields_.stop_token_ids.end())
        c.stop_reason = e.token;
    }
    auto detokenise = [&] {
      const TraceSpan span(service_.outbox(thread_)->track(), &service_.session().clock(),
                           "detokenise");
      return c.stream->take(e);
    };
    if (c.output && c.stream) {
      c.output->push(detokenise(), e.finish != Finish::none);
    } else if (c.stream) {
      c.text += detokenise();
    } else if (e.token != kNoToken && !e.is_end_token) {  // no vocabulary: ids are all there is
      c.text += strf(" %d", e.token);
    }
  }
  c.finish = e.finish;
  c.timing = e.timing;
  c.pooled = e.pooled;
  if (e.stop_string >= 0) c.stop_reason = fields_.stop[static_cast<size_t>(e.stop_string)];
  if (fields_.stream && (e.token != kNoToken || e.finish != Finish::none)) write_chunk(c);
  if (num_done_ == prompts_.size()) finish();
}

}  // namespace sluice
