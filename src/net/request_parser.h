// HTTP/1.1 and 1.0 requests from bytes. Strict: a message that two readers could frame differently
// is refused (bare LF, folded lines, space before a colon, several lengths, a length beside an
// encoding, an encoding other than chunked). Trailers and chunk extensions are checked and dropped.
// Memory: the header's limit plus the body's. One connection's; its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "net/http.h"

namespace sluice {

class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes from the front of `bytes` and returns how many: all of them, unless the request is
  // complete or refused before their end.
  size_t put(std::string_view bytes);

  bool head_done() const { return stage_ > Stage::head; }
  bool done() const { return stage_ == Stage::done; }
  bool refused() const { return status_ != 0; }
  // Why it was refused: the answer's status, and a line for the client.
  int status() const { return status_; }
  const std::string& reason() const { return reason_; }

  // Once head_done().
  bool http11() const { return minor_ == 1; }
  bool keep_alive() const { return keep_alive_; }
  bool expects_continue() const { return expects_continue_; }
  const HttpRequest& request() const { return request_; }
  HttpRequest take() { return std::move(request_); }

 private:
  enum class Stage { head, fixed, chunk_size, chunk_data, chunk_end, trailer, done };

  bool take_line(std::string_view& bytes, size_t limit);
  bool refuse(int status, std::string reason);
  void check_start();
  void on_head_line();
  bool parse_request_line(std::string_view line);
  bool split_target(std::string_view target);
  bool parse_field(std::string_view line, std::string& name, std::string_view& value);
  void finish_head();
  bool read_framing();
  bool read_host();
  bool read_length(std::string_view value);
  static void read_connection(std::string_view value, bool& close, bool& keep);
  void on_chunk_size();
  void on_trailer_line();
  void copy_body(std::string_view& bytes);

  const HttpLimits& limits_;
  HttpRequest request_;
  std::string line_;       // so far, with its CR LF once whole
  std::string authority_;  // of a target in absolute form
  Stage stage_ = Stage::head;
  size_t head_bytes_ = 0;   // and trailers
  size_t extra_bytes_ = 0;  // of chunk extensions
  uint64_t left_ = 0;       // of the body or chunk
  int minor_ = 1, status_ = 0;
  std::string reason_;
  bool blank_line_ = false, has_line_ = false, absolute_ = false;
  bool keep_alive_ = true, expects_continue_ = false;
};

}  // namespace sluice
