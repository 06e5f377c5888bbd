#include "dist/kv_link.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include "base/str.h"

namespace sluice {

Result<std::string> read_kv_key(const std::string& path) {
  constexpr size_t kLeast = 16;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in) return Error{400, strf("cannot read the key in %s", quote(path).c_str())};
  std::string key = text.str();
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.size() < kLeast)
    return Error{400, strf("the key in %s has %zu bytes: give at least %zu", quote(path).c_str(),
                           key.size(), kLeast)};
  return key;
}

Result<void> KvLink::greet(bool is_client, WaitUntil until) {
  KvHello own{!identity_.key.empty(), identity_.content, {}};
  std::random_device random;
  for (std::byte& b : own.nonce) b = static_cast<std::byte>(random() & 255);
  sent_.clear();
  encode_hello(own, sent_);
  if (is_client) {
    if (auto ok = stream_->send(sent_, kIdle, until); !ok) return ok;
  }
  received_.resize(kHelloBytes);
  if (auto ok = stream_->receive(received_, kIdle, until); !ok) return ok;
  Result<KvHello> other = decode_hello(received_);
  if (!other) return other.error();
  if (!is_client) {
    if (auto ok = stream_->send(sent_, kIdle, until); !ok) return ok;
  }
  if (other->keyed != own.keyed)
    return Error{403, strf("the peer has %s key (--kv-key)", other->keyed ? "a" : "no")};
  if (other->content != own.content)
    return Error{409, "the peer's KV blocks are of another model, format or build"};
  if (!own.keyed) return {};
  const KvHello& client = is_client ? own : *other;
  const KvHello& server = is_client ? *other : own;
  out_.emplace(identity_.key, client, server, is_client ? "client" : "server");
  in_.emplace(identity_.key, client, server, is_client ? "server" : "client");
  return prove(until);
}

// Nothing that depends on a prompt leaves before the peer's proof is here, and nothing longer is
// read: a hello alone could be anybody's.
Result<void> KvLink::prove(WaitUntil until) {
  if (auto ok = send(KvProof{}, until); !ok) return ok;
  Result<KvFrame> proof = receive(until, kIdle, 0);
  if (!proof) return proof.error();
  if (!std::holds_alternative<KvProof>(*proof)) return Error{400, "the peer did not prove its key"};
  return {};
}

Result<void> KvLink::send(const KvFrame& frame, WaitUntil until) {
  const std::span<const std::byte> block = frame_content(frame);
  sent_.clear();
  encode_frame(frame, identity_.block_bytes, sent_);
  if (!out_) {
    if (auto ok = stream_->send(sent_, kIdle, until); !ok || block.empty()) return ok;
    return stream_->send(block, kIdle, until);
  }
  const std::string_view parts[] = {as_text(sent_), as_text(block)};
  const Digest256 mac = out_->next(parts);
  if (auto ok = stream_->send(sent_, kIdle, until); !ok) return ok;
  if (auto ok = stream_->send(block, kIdle, until); !ok) return ok;
  return stream_->send(mac, kIdle, until);
}

Result<KvFrame> KvLink::receive(WaitUntil until, std::chrono::milliseconds idle, size_t most) {
  received_.resize(kFrameHeadBytes);
  if (auto ok = stream_->receive(received_, idle, until); !ok) return ok.error();
  Result<size_t> size = payload_size(received_, identity_.block_bytes);
  if (!size) return size.error();
  if (*size > most) return Error{400, "the peer did not prove its key"};
  const size_t mac_bytes = in_ ? kMacBytes : 0;
  received_.resize(kFrameHeadBytes + *size + mac_bytes);
  if (auto ok = stream_->receive(std::span(received_).subspan(kFrameHeadBytes), kIdle, until); !ok)
    return ok.error();
  const std::span<const std::byte> all(received_);
  const auto frame = all.first(kFrameHeadBytes + *size);
  if (in_) {
    const std::string_view parts[] = {as_text(frame)};
    Digest256 mac;
    std::ranges::copy(all.last(kMacBytes), mac.begin());
    if (!same_digest(in_->next(parts), mac))
      return Error{403, "the peer's key is another one (--kv-key)"};
  }
  return decode_frame(frame.first(kFrameHeadBytes), frame.subspan(kFrameHeadBytes));
}

}  // namespace sluice
