#include "tools/etcd_client.h"

#include <utility>

#include "base/str.h"

namespace sluice {

Result<EtcdClient> EtcdClient::make(const std::vector<std::string>& servers,
                                    const std::string& ca_file,
                                    std::chrono::milliseconds patience) {
  EtcdClient out;
  out.patience_ = patience;
  for (const std::string& text : servers) {
    Result<HttpUrl> url = parse_http_url(text);
    if (!url) return url.error();
    if (url->tls && !out.tls_) {
      Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({ca_file, false});
      if (!tls) return tls.error();
      out.tls_ = std::move(*tls);
    }
    out.servers_.push_back(std::move(*url));
  }
  return out;
}

Result<std::string> EtcdClient::ask(std::string_view path, const std::string& body) {
  Result<std::string> answer = try_ask(path, body);
  if (answer) return answer;
  return Error{503, strf("etcd at %s: %s", name().c_str(), answer.error().message.c_str())};
}

Result<std::string> EtcdClient::try_ask(std::string_view path, const std::string& body) {
  const HttpUrl& url = servers_[at_];
  if (!client_) {
    HttpClient::Options to;
    to.url = url;
    to.tls = tls_;
    to.max_connections = 1;
    to.connect = to.request = to.stall = patience_;
    Result<std::unique_ptr<HttpClient>> opened = HttpClient::open(std::move(to));
    if (!opened) return opened.error();
    client_ = std::move(*opened);
  }
  HttpReply reply = client_->fetch(http_request_bytes(url, "POST", url.path + std::string(path),
                                                      {{"content-type", "application/json"}}, body),
                                   kMostBytes);
  if (reply.failure != HttpFailure::none) {
    const std::string what = http_failure_name(reply.failure);
    return Error{503, reply.detail.empty() ? what : what + ", " + reply.detail};
  }
  if (reply.status != 200) return Error{503, strf("answers %d", reply.status)};
  return std::move(reply.body);
}

void EtcdClient::move_on() {
  client_.reset();
  at_ = (at_ + 1) % servers_.size();
}

}  // namespace sluice
