// What routers in front of several servers ask of each: SGLang's names and shapes, as sglang-router
// reads them. docs/api.md has examples.
#include <memory>

#include "server/routes.h"

namespace sluice {

// One entry per rank; there is one. The tokens of a prompt in progress count twice, in its blocks
// and as waiting.
void serve_router_load(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  const Meters& m = s.meters();
  int64_t held = int64_t{m.used_blocks()} * s.session().engine().config().block_size;
  s.reply_json(call,
               json::array{json::object{{"dp_rank", 0},
                                        {"num_reqs", m.num_running() + m.num_waiting()},
                                        {"num_waiting_reqs", m.num_waiting()},
                                        {"num_tokens", held + s.admission().waiting_tokens()}}});
}

void serve_server_info(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  const SchedulerConfig& c = s.session().engine().config();
  const std::string& name = s.options().model_names[0];
  json::value events;  // null: none are published
  if (const KvPublisher* p = s.kv_events()) {
    events = json::object{{"publish", p->publish_address()},
                          {"replay", p->replay_address()},
                          {"topic", p->topic()},
                          {"epoch", std::to_string(p->epoch())}};
  }
  const KvTransfer* transfer = s.options().transfer;
  s.reply_json(
      call, json::object{{"model_path", name},
                         {"served_model_name", name},
                         {"version", s.options().version},
                         {"status", "ready"},
                         {"dp_size", 1},
                         {"tp_size", 1},
                         {"disaggregation_mode", "null"},
                         {"context_length", c.max_len},
                         {"page_size", c.block_size},
                         {"max_total_num_tokens", c.num_positions()},
                         {"max_prefill_tokens", c.budget},
                         {"max_running_requests", c.max_seqs},
                         {"disable_radix_cache", !c.prefix_cache},
                         {"simulated", s.session().is_simulated()},
                         {"kv_role", name_of(kKvRoles, transfer ? transfer->role() : KvRole::none)},
                         {"kv_events", std::move(events)}});
}

void serve_model_info(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  s.reply_json(call, json::object{{"model_path", s.options().model_names[0]},
                                  {"tokenizer_path", nullptr},
                                  {"is_generation", true},
                                  {"model_type", s.session().model().shape().arch},
                                  {"max_context_length", s.session().engine().config().max_len},
                                  {"has_image_understanding", false},
                                  {"has_audio_understanding", false}});
}

// Answered when the engine thread has done it.
void serve_flush_cache(Service& s, Call call) {
  if (Refusal r = s.check_ready()) return s.fail(call, *r);
  auto kept = std::make_shared<Call>(std::move(call));
  s.session().engine().flush_prefixes([&s, kept](int num_blocks) {
    auto answer = [&s, kept, num_blocks] {
      try {
        s.reply_json(*kept, json::object{{"success", true}, {"num_blocks", num_blocks}});
      } catch (...) {
        s.fail_by_exception(*kept);
      }
    };
    try {
      s.post(kept->out->thread(), answer);
    } catch (...) {
      kept->out->abort();
    }
  });
}

}  // namespace sluice
