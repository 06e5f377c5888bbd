#include "tools/explain.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/str.h"
#include "net/http_client.h"
#include "net/http_get.h"
#include "tools/commands.h"
#include "tools/request_headers.h"
#include "tools/terminal.h"

namespace sluice {

namespace {

constexpr int kBarWidth = 32;
constexpr size_t kShownPromptSteps = 12;

const Error kForeign{400, "that is not what a sluice server answers: is --url right?"};

const json::value* member_of(const json::value& v, const char* name) {
  const json::object* o = v.if_object();
  return o ? o->if_contains(name) : nullptr;
}

double number_of(const json::value& v, const char* name) {
  const json::value* f = member_of(v, name);
  double n = f && f->is_number() ? f->to_number<double>() : 0;
  return std::isfinite(n) ? n : 0;
}

int64_t whole_of(const json::value& v, const char* name) {
  return static_cast<int64_t>(std::clamp(number_of(v, name), 0.0, 1e15));
}

// A server's words, without what would command the terminal.
std::string clean_words(const json::value* v) {
  std::string out = v && v->is_string() ? std::string(v->as_string()) : "";
  std::erase_if(out, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  return out;
}

const json::array* list_of(const json::value& v, const char* name) {
  const json::value* f = member_of(v, name);
  return f ? f->if_array() : nullptr;
}

std::string told_time(double s) {
  if (s >= 100) return strf("%.0f s", s);
  if (s >= 1) return strf("%.2f s", s);
  if (s >= 0.01) return strf("%.0f ms", s * 1e3);
  return strf("%.2f ms", s * 1e3);
}

std::string share_bar(double share) {
  int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kBarWidth + 0.5);
  return std::string(static_cast<size_t>(std::max(full, share > 0 ? 1 : 0)), '#');
}

void append_prompt_steps(const json::array& steps, std::string& out) {
  if (steps.size() < 2) return;  // the sentences say it
  out += "\nIts prompt by step:\n";
  for (size_t i = 0; i < std::min(steps.size(), kShownPromptSteps); ++i) {
    const json::value& s = steps[i];
    out += strf(
        "  step %-8lld at %9s, took %9s: %lld tokens, with %lld of other prompts, %lld decodes\n",
        static_cast<long long>(whole_of(s, "step")), told_time(number_of(s, "at")).c_str(),
        told_time(number_of(s, "seconds")).c_str(), static_cast<long long>(whole_of(s, "tokens")),
        static_cast<long long>(whole_of(s, "other_prefill_tokens")),
        static_cast<long long>(whole_of(s, "other_decode_tokens")));
  }
  if (steps.size() > kShownPromptSteps)
    out += strf("  and %zu more (--json)\n", steps.size() - kShownPromptSteps);
}

void append_requests(const json::array& data, std::string& out) {
  out += strf("  %8s  %-10s %9s %9s %9s %7s %7s %7s\n", "request", "state", "took", "ttft", "ago",
              "prompt", "cached", "output");
  for (const json::value& r : data) {
    bool begun = member_of(r, "ttft") != nullptr;
    out +=
        strf("  %8lld  %-10s %9s %9s %9s %7lld %7lld %7lld\n",
             static_cast<long long>(whole_of(r, "request")),
             clean_words(member_of(r, "state")).c_str(), told_time(number_of(r, "seconds")).c_str(),
             begun ? told_time(number_of(r, "ttft")).c_str() : "-",
             told_time(number_of(r, "age")).c_str(),
             static_cast<long long>(whole_of(r, "prompt_tokens")),
             static_cast<long long>(whole_of(r, "cached_tokens")),
             static_cast<long long>(whole_of(r, "output_tokens")));
  }
}

// One server, asked with GET.
class Asker {
 public:
  static Result<Asker> open(const ExplainOptions& o) {
    Asker a;
    Result<HttpUrl> url = parse_http_url(o.url);
    if (!url) return url.error();
    a.url_ = *url;
    if (a.url_.path.ends_with("/v1")) a.url_.path.resize(a.url_.path.size() - 3);
    if (!a.url_.tls && (o.insecure || !o.ca_file.empty()))
      return Error{400, "--insecure and --ca are of https:// URLs"};
    Result<HttpHeaders> headers = request_headers({}, o.api_key_env);
    if (!headers) return headers.error();
    a.headers_ = std::move(*headers);
    HttpClient::Options options;
    options.url = a.url_;
    options.request = options.stall = std::chrono::seconds(30);
    if (a.url_.tls) {
      Result<std::shared_ptr<TlsContext>> tls = TlsContext::client({o.ca_file, o.insecure});
      if (!tls) return tls.error();
      options.tls = std::move(*tls);
    }
    Result<std::unique_ptr<HttpClient>> client = HttpClient::open(options);
    if (!client) return Error{400, client.error().message};
    a.client_ = std::move(*client);
    return a;
  }

  Result<json::value> get(const std::string& path) {
    HttpReply r = client_->fetch(http_request_bytes(url_, "GET", path, headers_, {}));
    if (r.failure != HttpFailure::none) {
      return Error{400, strf("no server answers at %s port %d: %s (%s); start one with `sluice "
                             "serve`, or name it with --url",
                             quote(url_.host).c_str(), url_.port, r.detail.c_str(),
                             http_failure_name(r.failure))};
    }
    Result<json::value> body = parse_json(r.body, kRequestJson);
    if (r.status == 200) {
      if (!body) return kForeign;
      return body;
    }
    const json::value* error = body ? member_of(*body, "error") : nullptr;
    std::string message = error ? clean_words(member_of(*error, "message")) : "";
    if (r.status == 401) message += "; name the key's variable with --api-key-env";
    if (message.empty()) return kForeign;
    return Error{400, strf("the server says %d: %s", r.status, message.c_str())};
  }

 private:
  HttpUrl url_;
  HttpHeaders headers_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace

Result<std::string> story_text(const json::value& story, int columns) {
  const json::array *parts = list_of(story, "parts"), *sentences = list_of(story, "sentences");
  if (!parts || !sentences || !member_of(story, "request")) return kForeign;
  std::string out = strf("Request %lld: %s, %lld prompt tokens (%lld cached), %lld generated\n\n",
                         static_cast<long long>(whole_of(story, "request")),
                         clean_words(member_of(story, "state")).c_str(),
                         static_cast<long long>(whole_of(story, "prompt_tokens")),
                         static_cast<long long>(whole_of(story, "cached_tokens")),
                         static_cast<long long>(whole_of(story, "output_tokens")));
  for (const json::value& p : *parts) {
    if (number_of(p, "seconds") <= 0) continue;
    out += strf("  %-44s %9s %6.1f %%  %s\n", clean_words(member_of(p, "what")).c_str(),
                told_time(number_of(p, "seconds")).c_str(), 100 * number_of(p, "share"),
                share_bar(number_of(p, "share")).c_str());
  }
  out += strf("  %-44s %9s\n\n", "in all", told_time(number_of(story, "seconds")).c_str());
  for (const json::value& s : *sentences) out += broken_lines(clean_words(&s), columns) + "\n";
  if (const json::array* steps = list_of(story, "prompt_steps")) append_prompt_steps(*steps, out);
  return out;
}

Result<std::string> request_list_text(const json::value& slowest, const json::value& latest) {
  const json::array *slow = list_of(slowest, "data"), *late = list_of(latest, "data");
  if (!slow || !late) return kForeign;
  if (late->empty()) return std::string("No request of this key is known to the server yet.\n");
  std::string out =
      strf("The slowest of %lld requests:\n", static_cast<long long>(whole_of(latest, "total")));
  append_requests(*slow, out);
  out += "\nThe latest:\n";
  append_requests(*late, out);
  out += "\nWhere the time of one went: sluice explain REQUEST\n";
  return out;
}

int cmd_explain(const ExplainOptions& o) {
  Result<Asker> asker = Asker::open(o);
  if (!asker) return report(asker.error());
  Result<std::string> text = std::string();
  if (!o.id.empty()) {
    if (o.id.find('/') != o.id.npos)
      return report({400, strf("%s is no id of a request", quote(o.id).c_str())});
    Result<json::value> story = asker->get("/v1/requests/" + percent_encoded(o.id) + "/story");
    if (!story) return report(story.error());
    text = story_text(*story, stdout_columns());
    if (text && o.json) text = plain_json(*story) + "\n";
  } else {
    const std::string path = strf("/v1/requests?limit=%d&order=", o.num);
    Result<json::value> slowest = asker->get(path + "slowest");
    if (!slowest) return report(slowest.error());
    Result<json::value> latest = asker->get(path + "latest");
    if (!latest) return report(latest.error());
    text = request_list_text(*slowest, *latest);
    if (text && o.json) {
      text = plain_json(json::object{{"slowest", *member_of(*slowest, "data")},
                                     {"latest", *member_of(*latest, "data")}}) +
             "\n";
    }
  }
  if (!text) return report(text.error());
  std::fputs(text->c_str(), stdout);
  return kExitOk;
}

}  // namespace sluice
