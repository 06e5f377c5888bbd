// etcd's v3 API as its JSON gateway has it (POST /v3/...): bodies of requests, and what answers
// say. Pure functions. Keys and values are base64 there, whole numbers are text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

inline constexpr std::string_view kEtcdRange = "/v3/kv/range", kEtcdPut = "/v3/kv/put",
                                  kEtcdGrant = "/v3/lease/grant",
                                  kEtcdKeepAlive = "/v3/lease/keepalive",
                                  kEtcdRevoke = "/v3/lease/revoke";

std::string to_base64(std::string_view bytes);
Result<std::string> from_base64(std::string_view text);

// All keys that begin with the prefix, which is not empty; at most `limit`.
std::string etcd_range(std::string_view prefix, int limit);
// One key.
std::string etcd_get(std::string_view key);
// The values that either found.
Result<std::vector<std::string>> etcd_values(std::string_view answer);
std::string etcd_put(std::string_view key, std::string_view value, int64_t lease);
std::string etcd_grant(int64_t seconds);
// Of kEtcdKeepAlive and kEtcdRevoke.
std::string etcd_lease(int64_t lease);
// What a grant or a keep-alive says; no seconds: the lease is over.
struct EtcdLease {
  int64_t id = 0, seconds = 0;
};
Result<EtcdLease> etcd_granted(std::string_view answer);

}  // namespace sluice
