#include "server/batch_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/str.h"

namespace sluice {

namespace {

constexpr size_t kMaxLine = size_t{64} << 20;  // bytes
constexpr std::array<std::string_view, 4> kUrls = {"/v1/chat/completions", "/v1/completions",
                                                   "/v1/embeddings", "/v1/responses"};

Error system_error(const char* what, const std::string& path) {
  return {500, strf("cannot %s %s: %s", what, quote(path, 400).c_str(), std::strerror(errno))};
}

// Calls f(text, offset, line number, whether it had an end) for each line, until one is an error.
template <typename F>
Result<void> each_line(int fd, const std::string& path, F f) {
  std::string rest, piece(size_t{1} << 20, '\0');
  uint64_t offset = 0;  // of rest
  size_t line = 0;
  for (bool more = true; more;) {
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read", path);
    more = got > 0;
    rest.append(piece, 0, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const auto text = std::string_view(rest).substr(begin, end - begin);
      if (auto ok = f(text, offset + begin, ++line, true); !ok) return ok;
    }
    rest.erase(0, begin);
    offset += begin;
    if (rest.size() > kMaxLine)
      return Error{400,
                   strf("%s, line %zu is longer than 64 MiB", quote(path, 400).c_str(), line + 1)};
  }
  if (!rest.empty()) return f(std::string_view(rest), offset, line + 1, false);
  return {};
}

bool blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

// The member's text; empty where there is none.
std::string text_of(const json::object& object, std::string_view name) {
  const json::value* v = object.if_contains(name);
  return v && v->is_string() ? std::string(v->get_string()) : std::string();
}

// Of a result; 0: there was no answer.
int64_t status_of(const json::object& result) {
  const json::value* response = result.if_contains("response");
  if (!response || !response->is_object()) return 0;
  const json::value* status = response->get_object().if_contains("status_code");
  return status && status->is_int64() ? status->get_int64() : 0;
}

Error at_line(const std::string& path, size_t line, const std::string& message) {
  return {400, strf("%s, line %zu: %s", quote(path, 400).c_str(), line, message.c_str())};
}

Result<void> write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error("write", path);
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return {};
}

void close_file(int& fd) {
  if (fd >= 0) ::close(fd);
  fd = -1;
}

}  // namespace

bool is_batch_url(std::string_view url) { return std::ranges::find(kUrls, url) != kUrls.end(); }

Result<BatchLine> parse_batch_line(std::string_view text) {
  Result<json::value> value = parse_json(text, kRequestJson);
  if (!value) return value.error();
  if (!value->is_object()) return Error{400, "not a JSON object"};
  json::object& object = value->get_object();
  BatchLine line{text_of(object, "custom_id"), text_of(object, "url"), {}};
  if (line.custom_id.empty()) return Error{400, "no custom_id, which names a request's result"};
  if (const json::value* m = object.if_contains("method"); m && text_of(object, "method") != "POST")
    return Error{400, "method is not POST"};
  if (!is_batch_url(line.url))
    return Error{400, strf("url is %s: it must be /v1/chat/completions, /v1/completions, "
                           "/v1/embeddings or /v1/responses",
                           quote(line.url).c_str())};
  json::value* body = object.if_contains("body");
  if (!body || !body->is_object()) return Error{400, "no body, which is the request as an object"};
  line.body = std::move(body->get_object());
  if (const json::value* stream = line.body.if_contains("stream");
      stream && !stream->is_null() && *stream != json::value(false))
    return Error{400, "body.stream: results are whole, so leave it out"};
  return line;
}

// ---- requests ----

BatchInput::BatchInput(BatchInput&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      places_(std::move(other.places_)),
      by_id_(std::move(other.by_id_)) {}

BatchInput& BatchInput::operator=(BatchInput&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  places_.swap(other.places_);
  by_id_.swap(other.by_id_);
  return *this;
}

BatchInput::~BatchInput() { close_file(fd_); }

Result<BatchInput> BatchInput::open(const std::string& path, const Rules& rules) {
  BatchInput input;
  const std::string& name = input.name_ = rules.name.empty() ? path : rules.name;
  input.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (input.fd_ < 0)
    return Error{400, strf("cannot open %s: %s", quote(name, 400).c_str(), std::strerror(errno))};
  struct stat info = {};
  if (::fstat(input.fd_, &info) != 0 || !S_ISREG(info.st_mode))
    return Error{
        400, strf("%s is not a file: a batch is read more than once", quote(name, 400).c_str())};
  if (auto ok = input.scan(rules); !ok) return ok.error();
  if (input.places_.empty())
    return Error{400, strf("%s has no request in it", quote(name, 400).c_str())};
  return input;
}

Result<void> BatchInput::scan(const Rules& rules) {
  return each_line(fd_, name_, [&](std::string_view text, uint64_t offset, size_t line, bool) {
    return blank(text) ? Result<void>() : add(text, offset, line, rules);
  });
}

Result<void> BatchInput::add(std::string_view text,
                             uint64_t offset,
                             size_t line,
                             const Rules& rules) {
  Result<BatchLine> parsed = parse_batch_line(text);
  if (!parsed) return at_line(name_, line, parsed.error().message);
  if (!rules.url.empty() && parsed->url != rules.url)
    return at_line(
        name_, line,
        strf("url is %s, and the batch's is %s", parsed->url.c_str(), rules.url.c_str()));
  if (places_.size() >= rules.max_requests)
    return at_line(name_, line, strf("a batch has at most %zu requests", rules.max_requests));
  const auto [at, is_new] = by_id_.try_emplace(parsed->custom_id, places_.size());
  if (!is_new)
    return at_line(name_, line,
                   strf("custom_id %s is that of line %zu too", quote(parsed->custom_id).c_str(),
                        places_[at->second].line));
  places_.push_back({offset, text.size(), line});
  return {};
}

Result<BatchLine> BatchInput::read(size_t index) {
  const Place& place = places_[index];
  std::string text(place.length, '\0');
  for (size_t have = 0; have < text.size();) {
    const ssize_t got = ::pread(fd_, text.data() + have, text.size() - have,
                                static_cast<off_t>(place.offset + have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("read", name_);
    if (got == 0) return at_line(name_, place.line, "the file became shorter while it was read");
    have += static_cast<size_t>(got);
  }
  Result<BatchLine> line = parse_batch_line(text);
  const auto at = line ? by_id_.find(line->custom_id) : by_id_.end();
  if (at == by_id_.end() || at->second != index)
    return at_line(name_, place.line, "the file was changed while it was read");
  return line;
}

std::optional<size_t> BatchInput::find(std::string_view custom_id) const {
  const auto at = by_id_.find(custom_id);
  if (at == by_id_.end()) return std::nullopt;
  return at->second;
}

// ---- results ----

std::string batch_result_line(const BatchResult& r) {
  json::object line{{"id", "batch_req_" + (r.request_id.empty() ? r.custom_id : r.request_id)},
                    {"custom_id", r.custom_id}};
  if (r.status == 0) {
    line["response"] = nullptr;
    line["error"] = json::object{{"code", r.code}, {"message", r.error}};
  } else {
    Result<json::value> body = parse_json(r.body);
    if (!body)
      body = json::value(valid_utf8(r.body) ? r.body : strf("%zu bytes, no text", r.body.size()));
    line["response"] = json::object{
        {"status_code", r.status}, {"request_id", r.request_id}, {"body", std::move(*body)}};
    line["error"] = nullptr;
  }
  std::string text = plain_json(line);
  if (!parse_json(text)) {  // two levels more than the body had
    line["response"].get_object()["body"] = r.body;
    text = plain_json(line);
  }
  return text + "\n";
}

Result<void> each_batch_result(const std::string& path,
                               const std::function<Result<void>(std::string_view, bool)>& f) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return system_error("read", path);
  std::string line;
  Result<void> done = each_line(fd, path, [&](std::string_view text, uint64_t, size_t, bool) {
    Result<json::value> value = parse_json(text);
    const int64_t status = value && value->is_object() ? status_of(value->get_object()) : 0;
    line.assign(text).push_back('\n');
    return f(line, status == 200);
  });
  close_file(fd);
  return done;
}

BatchOutput::BatchOutput(BatchOutput&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      done_(std::move(other.done_)),
      num_done_(other.num_done_),
      num_refused_(other.num_refused_),
      bytes_(other.bytes_) {}

BatchOutput& BatchOutput::operator=(BatchOutput&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  done_.swap(other.done_);
  num_done_ = other.num_done_;
  num_refused_ = other.num_refused_;
  bytes_ = other.bytes_;
  return *this;
}

BatchOutput::~BatchOutput() { close_file(fd_); }

Result<BatchOutput> BatchOutput::open(const std::string& path, const BatchInput& input) {
  BatchOutput output;
  output.path_ = path;
  output.done_.resize(input.size());
  output.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (output.fd_ < 0)
    return Error{400, strf("cannot write %s: %s", quote(path, 400).c_str(), std::strerror(errno))};
  if (auto ok = output.lock(); !ok) return ok.error();
  if (auto ok = output.take_over(input); !ok) return ok.error();
  return output;
}

Result<void> BatchOutput::lock() {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return {};
  return Error{400, strf("another run writes %s: wait for it, or choose another --out",
                         quote(path_, 400).c_str())};
}

Result<void> BatchOutput::take_over(const BatchInput& input) {
  std::string kept;  // what follows the first line that is dropped
  uint64_t end = 0;  // of the lines that stay where they are
  bool dropped = false;
  auto ok = each_line(
      fd_, path_,
      [&](std::string_view text, uint64_t offset, size_t line, bool whole) -> Result<void> {
        if (!whole || blank(text)) return dropped = true, Result<void>();
        Result<json::value> value = parse_json(text);
        const bool object = value && value->is_object();
        const auto index =
            object ? input.find(text_of(value->get_object(), "custom_id")) : std::nullopt;
        if (!index || done_[*index])
          return at_line(path_, line,
                         strf("%s: choose another --out, or remove the file",
                              !object  ? "not a result of a batch"
                              : !index ? "a result of a request that the batch does not have"
                                       : "a second result of a request"));
        const int64_t code = status_of(value->get_object());
        if (code == 0 || code >= 500) return dropped = true, Result<void>();
        num_refused_ += code >= 400;
        done_[*index] = true;
        ++num_done_;
        if (dropped)
          kept.append(text).push_back('\n');
        else
          end = offset + text.size() + 1;
        return {};
      });
  if (!ok) return ok;
  bytes_ = end + kept.size();
  if (!kept.empty()) return replace(end, kept);
  if (dropped && ::ftruncate(fd_, static_cast<off_t>(end)) != 0) return system_error("cut", path_);
  if (::lseek(fd_, 0, SEEK_END) < 0) return system_error("read", path_);
  return {};
}

// The file anew: its first `size` bytes and `rest`. Whenever it is stopped, all results are there.
Result<void> BatchOutput::replace(uint64_t size, std::string_view rest) {
  const std::string path = path_ + ".new";
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return system_error("write", path);
  std::swap(fd, fd_);  // fd: the old one
  auto copy = [&]() -> Result<void> {
    if (auto ok = lock(); !ok) return ok;
    std::string piece(size_t{1} << 20, '\0');
    for (uint64_t at = 0; at < size;) {
      const size_t want = std::min<uint64_t>(piece.size(), size - at);
      const ssize_t got = ::pread(fd, piece.data(), want, static_cast<off_t>(at));
      if (got <= 0) return system_error("read", path_);
      if (auto ok = write_all(fd_, {piece.data(), static_cast<size_t>(got)}, path); !ok) return ok;
      at += static_cast<uint64_t>(got);
    }
    if (auto ok = write_all(fd_, rest, path); !ok) return ok;
    if (auto ok = sync(); !ok) return ok;
    if (::rename(path.c_str(), path_.c_str()) != 0) return system_error("write", path_);
    return {};
  };
  Result<void> done = copy();
  close_file(fd);
  if (!done) ::unlink(path.c_str());
  return done;
}

Result<void> BatchOutput::add(size_t index, const BatchResult& result) {
  const off_t end = ::lseek(fd_, 0, SEEK_CUR);
  const std::string line = batch_result_line(result);
  if (auto ok = write_all(fd_, line, path_); !ok) {
    if (::ftruncate(fd_, end) == 0) ::lseek(fd_, end, SEEK_SET);  // no half line before others
    return ok;
  }
  done_[index] = true;
  ++num_done_;
  bytes_ += line.size();
  num_refused_ += result.status == 0 || result.status >= 400;
  return {};
}

Result<void> BatchOutput::sync() {
  if (::fsync(fd_) != 0 && errno != EINVAL) return system_error("write", path_);
  return {};
}

}  // namespace sluice
