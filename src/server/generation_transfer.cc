// A generation whose prompt is computed here for another server, or there for this one.
#include "base/failure.h"
#include "base/str.h"
#include "server/generation.h"

namespace sluice {

// What SGLang's router asks of both servers: one computes the prompt, and its token is read by
// nobody; the other goes on with it.
Refusal Generation::enter_room() {
  constexpr const char* kParam = "bootstrap_room";
  const TransferFields::Room& room = *fields_.transfer.room;
  const KvTransfer* transfer = service_.options().transfer;
  if (!transfer)
    return ApiError{400, "prompts are not handed from server to server here (serve --role)", kParam,
                    "unsupported_parameter"};
  if (transfer->role() == KvRole::both)
    return ApiError{400, "bootstrap_room needs a server of role prefill or decode, not both",
                    kParam, ""};
  if (transfer->role() == KvRole::decode) {
    fields_.transfer.from = {room.host, room.port, room_lease(room.number), 1, true};
    return {};
  }
  fields_.transfer.send = true;
  fields_.transfer.name = room_lease(room.number);
  fields_.max_tokens = 1;
  fields_.sampling.min_tokens = 0;
  return {};
}

Refusal Generation::check_transfer(size_t num_prompts) {
  if (fields_.transfer.room)
    if (Refusal refused = enter_room()) return refused;
  auto wrong = [](std::string message) {
    return ApiError{400, std::move(message), "kv_transfer_params", ""};
  };
  const KvTransfer* transfer = service_.options().transfer;
  const bool send = fields_.transfer.send;
  const bool prefix = fields_.transfer.from && !fields_.transfer.from->lease;
  if (!transfer) return wrong("prompts are not handed from server to server here (serve --role)");
  if (send ? !transfer->sends() : !transfer->fetches()) {
    return wrong(strf("this server's role is %s: it does not take %s",
                      name_of(kKvRoles, transfer->role()),
                      send     ? "do_remote_decode"
                      : prefix ? "do_remote_prefix"
                               : "do_remote_prefill"));
  }
  if (prefix && !transfer->moves_prefixes())
    return wrong(transfer->has_key()
                     ? "do_remote_prefix does not go with this model: its cache has windows"
                     : "do_remote_prefix needs a key (serve --kv-key)");
  if (num_prompts != 1) return wrong("kv_transfer_params goes with one prompt");
  if (send && fields_.stream && !fields_.transfer.room)
    return wrong("do_remote_decode does not go with stream");
  if (fields_.pooling != Pooling::none) return wrong("kv_transfer_params goes with text");
  return {};
}

PromptBlocks Generation::prompt_blocks(size_t prompt) const {
  PromptBlocks out;
  out.prompt = prompts_[prompt].tokens;
  out.tenant = service_.keys().tenant(call_.key, fields_.cache_salt);
  out.hashes =
      hash_blocks(*out.prompt, service_.session().engine().config().block_size, out.tenant);
  return out;
}

// Goes on with what has come, in a few seconds at most, and not after the request's own time.
void Generation::fetch_prompt() {
  const TransferFields::From& from = *fields_.transfer.from;
  auto done = [self = shared_from_this()](const KvFetcher::Outcome& outcome) {
    try {
      self->service_.post(self->thread(), [self, outcome] { self->take_fetched(outcome); });
    } catch (...) {
      log_exception("request failed");
      self->lose();
    }
  };
  PromptBlocks wanted = prompt_blocks(0);
  if (!from.lease) {  // a block more: the share is an estimate
    const double blocks = from.share * static_cast<double>(wanted.hashes.size());
    wanted.hashes.resize(std::min(wanted.hashes.size(), static_cast<size_t>(blocks) + 1));
  }
  const auto now = std::chrono::steady_clock::now();
  const Time end = deadline();
  const WaitUntil until =
      end > Time{0} ? now + (end - service_.session().clock().now()) : WaitUntil::max();
  fetch_began_ = service_.clock().now();
  if (!service_.options().transfer->fetch(
          {{from.host, from.port}, from.lease, from.pending && from.lease}, std::move(wanted),
          until, std::move(done)))
    take_fetched({0, 0, "not fetched", {}});
}

void Generation::take_fetched(const KvFetcher::Outcome& o) {
  try {
    const int num_tokens = o.num_positions * service_.session().engine().config().block_size;
    const Time took = service_.clock().now() - fetch_began_;
    const auto whole = static_cast<double>(prompts_[0].tokens->size());
    // Of one that was awaited the time says nothing of the transfer.
    if (!fields_.transfer.from->pending)
      call_.out->add_header(std::string(kKvFetchedHeader),
                            strf("%.4f %.6f", num_tokens / whole, seconds(took)));
    fetched_ = FetchedPrompt{o.took, num_tokens, o.error.empty()};
    submit_more();
  } catch (...) {
    log_exception("request failed");
    lose();
  }
}

std::string Generation::transfer_params() const {
  if (!lease_) return "null";
  return service_.options().transfer->params(lease_->name, prompts_[0].tokens->size());
}

}  // namespace sluice
