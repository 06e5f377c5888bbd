// Requests to etcd's servers, one server at a time. Its name is looked up when the first request
// goes there, and again after a failure. Blocks: belongs to a thread that may wait. One thread.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_client.h"

namespace sluice {

class EtcdClient {
 public:
  static constexpr size_t kMostBytes = 1 << 20;  // of an answer

  // What is wrong with URLs of etcd, or with the file of certificates for https; empty: the
  // system's. `servers`: at least one.
  static Result<EtcdClient> make(const std::vector<std::string>& servers,
                                 const std::string& ca_file,
                                 std::chrono::milliseconds patience);

  // The body of a good answer of the server in turn. Any failure is 503, and names the server.
  Result<std::string> ask(std::string_view path, const std::string& body);
  // After a failure of any kind, a good answer that makes no sense too: on to the next server.
  void move_on();
  // The server in turn.
  std::string name() const { return http_authority(servers_[at_]); }

 private:
  EtcdClient() = default;
  Result<std::string> try_ask(std::string_view path, const std::string& body);

  std::vector<HttpUrl> servers_;
  std::shared_ptr<TlsContext> tls_;  // null: none of them is https
  std::chrono::milliseconds patience_{0};
  size_t at_ = 0;
  std::unique_ptr<HttpClient> client_;  // null: not looked up
};

}  // namespace sluice
