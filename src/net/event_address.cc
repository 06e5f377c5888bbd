// What every build checks of event sockets' addresses and keys.
#include <algorithm>
#include <charconv>
#include <fstream>

#include "base/str.h"
#include "net/event_socket.h"
#include "net/http.h"

namespace sluice {

namespace {

constexpr size_t kCurveKeySize = 40;

bool is_port(std::string_view text) {
  if (text == "*") return true;
  int port = -1;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && stop == text.data() + text.size() && port >= 1 && port <= 65535;
}

bool is_curve_key(std::string_view text) {
  constexpr std::string_view kOthers = ".-:+=^!/*?&<>()[]{}@%$#";
  return text.size() == kCurveKeySize && std::ranges::all_of(text, [&](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  kOthers.find(c) != kOthers.npos;
         });
}

}  // namespace

Result<void> check_event_address(const std::string& address, bool keyed) {
  constexpr std::string_view kTcp = "tcp://", kIpc = "ipc://";
  if (address.starts_with(kIpc) && address.size() > kIpc.size()) return {};
  const std::string rest = address.starts_with(kTcp) ? address.substr(kTcp.size()) : "";
  const size_t colon = rest.rfind(':');
  if (colon == rest.npos || colon == 0 || !is_port(rest.substr(colon + 1))) {
    return Error{400, strf("%s is no address to publish on: use tcp://127.0.0.1:5557 or ipc://PATH",
                           quote(address).c_str())};
  }
  std::string host = rest.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  if (keyed || is_loopback(host)) return {};
  return Error{400, strf("%s can be reached by others, and the events carry prompts: give "
                         "--kv-events-key, or an address of 127.0.0.1",
                         quote(address).c_str())};
}

namespace {

// Lines "secret KEY" and "`other` KEY"; # begins a comment.
struct KeyLines {
  std::vector<std::string> secrets, others;
};
Result<KeyLines> read_key_lines(const std::string& path, const std::string& other) {
  std::ifstream in(path);
  if (!in) return Error{400, strf("cannot read the keys in %s", quote(path).c_str())};
  KeyLines keys;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.find(' ');
    const std::string kind = line.substr(0, space);
    const std::string key = space == line.npos ? "" : line.substr(space + 1);
    if ((kind != "secret" && kind != other) || !is_curve_key(key)) {
      return Error{400, strf("%s:%d: not \"secret KEY\" or \"%s KEY\" with 40 characters of Z85",
                             path.c_str(), number, other.c_str())};
    }
    (kind == "secret" ? keys.secrets : keys.others).push_back(key);
    if (keys.secrets.size() > 1)
      return Error{400, strf("%s:%d: a second secret key", path.c_str(), number)};
  }
  return keys;
}

}  // namespace

Result<CurveKeys> read_curve_keys(const std::string& path) {
  Result<KeyLines> lines = read_key_lines(path, "client");
  if (!lines) return lines.error();
  if (lines->secrets.empty() || lines->others.empty()) {
    return Error{400, strf("%s needs a line \"secret KEY\" and at least one \"client KEY\"",
                           quote(path).c_str())};
  }
  return CurveKeys{lines->secrets[0], std::move(lines->others)};
}

Result<CurveClientKeys> read_curve_client_keys(const std::string& path) {
  Result<KeyLines> lines = read_key_lines(path, "server");
  if (!lines) return lines.error();
  if (lines->secrets.size() != 1 || lines->others.size() != 1) {
    return Error{
        400, strf("%s needs one line \"secret KEY\" and one \"server KEY\"", quote(path).c_str())};
  }
  return CurveClientKeys{lines->secrets[0], lines->others[0]};
}

}  // namespace sluice
