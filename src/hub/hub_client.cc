#include "hub/hub_client.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxAnswer = 64 << 20;
constexpr int kMostTries = 6;
constexpr double kLongestWait = 120;

std::string header(const HttpReply& reply, std::string_view name) {
  for (const auto& [key, value] : reply.headers)
    if (key == name) return value;
  return "";
}

// Retry-After in seconds; 0: not said, or a date.
double retry_after(const HttpReply& reply) {
  std::string text = header(reply, "retry-after");
  unsigned seconds = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  return ec == std::errc() && end == text.data() + text.size() ? seconds : 0;
}

}  // namespace

std::string failure_words(const HttpReply& reply) {
  if (reply.failure != HttpFailure::none)
    return reply.detail.empty() ? http_failure_name(reply.failure) : reply.detail;
  return strf("HTTP status %d", reply.status);
}

bool Patience::wait(const std::string& why, const HttpReply& reply) {
  if (++num_failures_ >= kMostTries) return false;
  double seconds = std::min(0.5 * (1 << (num_failures_ - 1)), 16.0);
  double asked = retry_after(reply);
  if (asked > kLongestWait) return false;
  seconds = std::max(seconds, asked);
  if (say_) say_(strf("%s; trying again in %.3g s", why.c_str(), seconds));
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return true;
}

bool is_passing(const HttpReply& reply) {
  if (reply.failure != HttpFailure::none) {
    bool hopeless = reply.failure == HttpFailure::malformed ||
                    reply.detail.find("certificate") != std::string::npos ||
                    reply.detail.find("no OpenSSL") != std::string::npos ||
                    reply.detail.find("_proxy is not") != std::string::npos ||
                    reply.detail.starts_with("cannot find") ||
                    reply.detail.starts_with("the proxy said");
    return !hopeless;
  }
  return reply.status == 408 || reply.status == 429 || reply.status >= 500;
}

Error refusal(const HttpReply& reply, const std::string& what, const HubSettings& settings) {
  const std::string host = http_authority(settings.endpoint);
  const char* name = what.c_str();
  if (reply.failure != HttpFailure::none) {
    std::string why = failure_words(reply);
    if (why.find("no OpenSSL") != std::string::npos) return Error{400, what + ": " + why};
    const char* todo = "check the network and https_proxy, or give a file that is here";
    if (why.find("certificate") != std::string::npos)
      todo = "install ca-certificates, or name the file of your own authority in SSL_CERT_FILE";
    return Error{500,
                 strf("%s: cannot get it from %s: %s; %s", name, host.c_str(), why.c_str(), todo)};
  }
  const std::string code = header(reply, "x-error-code");
  const bool token = !settings.token.empty();
  if (code == "GatedRepo")
    return Error{
        403, strf("%s is gated: accept its terms at https://%s/%s, then set HF_TOKEN to a token "
                  "of that account%s",
                  name, host.c_str(), what.substr(3, what.find(':', 3) - 3).c_str(),
                  token ? " (the one that is set has no access)" : "")};
  if (reply.status == 401 && token && code != "RepoNotFound")
    return Error{401, strf("%s: %s does not accept the token from %s: replace it, or unset it",
                           name, host.c_str(), settings.token_from.c_str())};
  if (reply.status == 401 || reply.status == 404)
    return Error{404, strf("%s is not on %s%s", name, host.c_str(),
                           token ? ", or the token may not see it: check the name"
                                 : "; check the name, or set HF_TOKEN if it is private or gated")};
  if (reply.status == 403)
    return Error{403, strf("%s: %s refuses access: %s", name, host.c_str(),
                           token ? "the token may not read this repository"
                                 : "set HF_TOKEN to a token that may read it")};
  if (reply.status == 429)
    return Error{500, strf("%s: %s limits how often one may ask: try again later%s", name,
                           host.c_str(), token ? "" : ", or set HF_TOKEN")};
  return Error{500, strf("%s: %s answers with %s: try again later", name, host.c_str(),
                         failure_words(reply).c_str())};
}

HttpGetter::Request HubClient::file_request(const Repository& repo, const std::string& path) const {
  HttpGetter::Request r;
  r.at.origin = settings_.endpoint;
  r.at.origin.path.clear();
  r.at.target = settings_.endpoint.path + "/" + repo.id + "/resolve/" + repo.commit + "/" +
                percent_encoded(path);
  r.headers = {{"User-Agent", "sluice"}, {"Accept-Encoding", "identity"}};
  if (!settings_.token.empty()) r.authorization = "Bearer " + settings_.token;
  return r;
}

Result<Repository> HubClient::repository(const HubName& name) {
  HttpGetter::Request r = file_request({name.repo_id(), "", {}}, "");
  r.at.target = settings_.endpoint.path + "/api/models/" + name.repo_id() + "?blobs=true";
  Patience patience(say_);
  while (true) {
    HttpReply reply = getter_.get(r, kMaxAnswer);
    if (reply.failure == HttpFailure::none && reply.status == 200)
      return parse_repository(reply.body, name.repo_id());
    // Without any connection yet there is probably no network: somebody waits for this answer.
    bool again = is_passing(reply) && reply.failure != HttpFailure::connect;
    if (!again || !patience.wait(failure_words(reply), reply))
      return refusal(reply, "hf:" + name.repo_id(), settings_);
  }
}

}  // namespace sluice
