// The two files of a batch, in OpenAI's format: requests, one JSON object per line, and results,
// one per request in the order in which they came. Bodies stay in the file until they are sent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "base/result.h"

namespace sluice {

// A request of the file.
struct BatchLine {
  std::string custom_id, url;
  json::object body;
};
// Whether a batch may ask this route.
bool is_batch_url(std::string_view url);
// `text` without its end of line. Errors say what is wrong, not where.
Result<BatchLine> parse_batch_line(std::string_view text);

// Used by one thread at a time.
class BatchInput {
 public:
  struct Rules {
    std::string name;  // of the file in messages; empty: its path
    std::string url;   // that all requests must have; empty: any
    size_t max_requests = SIZE_MAX;
  };
  // Reads and checks all lines; their ids must differ. Empty lines are left out.
  static Result<BatchInput> open(const std::string& path, const Rules& rules);
  static Result<BatchInput> open(const std::string& path) { return open(path, {}); }
  BatchInput(BatchInput&& other) noexcept;
  BatchInput& operator=(BatchInput&& other) noexcept;
  ~BatchInput();

  size_t size() const { return places_.size(); }
  Result<BatchLine> read(size_t index);
  std::optional<size_t> find(std::string_view custom_id) const;

 private:
  struct Place {
    uint64_t offset = 0;
    size_t length = 0, line = 0;  // line: from 1
  };
  BatchInput() = default;
  Result<void> scan(const Rules& rules);
  Result<void> add(std::string_view text, uint64_t offset, size_t line, const Rules& rules);

  std::string name_;
  int fd_ = -1;
  std::vector<Place> places_;
  std::unordered_map<std::string, size_t, KeyedHash, std::equal_to<>> by_id_;
};

// What became of one request.
struct BatchResult {
  std::string custom_id, request_id;  // request_id: the server's
  int status = 0;                     // 0: no answer, and `error` says why
  std::string body;                   // JSON, or whatever the server sent
  std::string error, code = "no_answer";
};
std::string batch_result_line(const BatchResult& result);  // with its end of line

// Calls f(line with its end, whether its request was answered with 200) for each result of a file
// that BatchOutput wrote, until f returns an error.
Result<void> each_batch_result(const std::string& path,
                               const std::function<Result<void>(std::string_view, bool)>& f);

// Results that are there already, of an earlier run, and those that come. Each is one write at the
// end of the file. Used by one thread at a time; one process at a time.
class BatchOutput {
 public:
  // Takes over what the file has: a line that was cut is dropped, and so are requests that got no
  // answer or a status of 500 and above, so that they are sent again. A result of a request that
  // `input` does not have is an error.
  static Result<BatchOutput> open(const std::string& path, const BatchInput& input);
  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&& other) noexcept;
  ~BatchOutput();

  const std::vector<bool>& done() const { return done_; }  // by index of the input
  size_t num_done() const { return num_done_; }
  size_t num_refused() const { return num_refused_; }  // of those, with a status of 400 and above
  uint64_t bytes() const { return bytes_; }
  Result<void> add(size_t index, const BatchResult& result);
  Result<void> sync();

 private:
  BatchOutput() = default;
  Result<void> lock();
  Result<void> take_over(const BatchInput& input);
  Result<void> replace(uint64_t size, std::string_view rest);

  std::string path_;
  int fd_ = -1;
  std::vector<bool> done_;
  size_t num_done_ = 0, num_refused_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace sluice
