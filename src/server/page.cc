// The page at /, and the files it is made of: embedded, open, never the user's words in them.
#include "load/embedded.h"
#include "base/str.h"
#include "server/keys.h"
#include "server/routes.h"

namespace sluice {

namespace {

constexpr std::string_view kFolder = "/page/";

const char* content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

HttpHeaders page_headers(const std::string& tag) {
  return {
      {"ETag", tag},
      {"Cache-Control", "no-cache"},  // asked for again each time, and answered 304
      {"Content-Security-Policy",
       "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src "
       "'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Cross-Origin-Resource-Policy", "same-origin"},
  };
}

void send_file(Service& s, const Call& call, std::string_view name) {
  for (const EmbeddedFile& file : embedded_page()) {
    if (file.name != name) continue;
    auto hash = keyed_hash({0x736c75696365, 1}, file.text);
    std::string tag = strf("\"%016llx\"", static_cast<unsigned long long>(hash));
    HttpResponse r;
    r.headers = page_headers(tag);
    r.content_type = content_type(name);
    if (call.http.header("if-none-match") == tag) {
      r.status = 304;
    } else {
      r.body = std::string(file.text);
    }
    return s.reply(call, std::move(r));
  }
  s.fail(call, {404, strf("there is no %s here", quote(call.http.path).c_str()), "", "not_found"});
}

}  // namespace

void serve_page_file(Service& s, Call call) {
  send_file(s, call, std::string_view(call.http.path).substr(kFolder.size()));
}

// Browsers get the page, others the list of what is here.
void serve_root(Service& s, Call call) {
  if (call.http.header("accept").find("text/html") != std::string_view::npos)
    return send_file(s, call, "index.html");
  HttpResponse r;
  r.content_type = "text/plain; charset=utf-8";
  r.headers.emplace_back("Vary", "Accept");
  r.body = strf("sluice %s\n\n", s.options().version.c_str());
  for (const Route& route : routes()) {
    std::string path = route.path;
    if (const size_t star = path.find('*'); star != path.npos) path.replace(star, 1, "{id}");
    r.body += strf("%-6s %s\n", route.method, path.c_str());
  }
  s.reply(call, std::move(r));
}

}  // namespace sluice
