#include "net/request_parser.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "base/str.h"
#include "net/strict_reader.h"

namespace sluice {
namespace {

HttpLimits small_limits() {
  HttpLimits l;
  l.header_bytes = 2048;
  l.num_headers = 20;
  l.body_bytes = 1000;
  return l;
}

// The status of a refusal, 200 for a whole request, 0 for one that goes on.
int outcome(const RequestParser& p) { return p.refused() ? p.status() : p.done() ? 200 : 0; }

struct Row {
  const char* what;
  std::string bytes;
  int status;
  const char* says = "";
};

const std::string kGet = "GET / HTTP/1.1\r\nHost: x\r\n";
const std::string kPost = "POST / HTTP/1.1\r\nHost: x\r\n";
const std::string kChunked = kPost + "Transfer-Encoding: chunked\r\n\r\n";

std::vector<Row> table() {
  using namespace std::string_literals;
  return {
      {"plain", kGet + "\r\n", 200},
      {"one empty line in front", "\r\n" + kGet + "\r\n", 200},
      {"two empty lines in front", "\r\n\r\n" + kGet + "\r\n", 400, "empty lines"},
      {"unfinished", kGet, 0},
      {"HTTP/1.0 without Host", "GET / HTTP/1.0\r\n\r\n", 200},
      {"HTTP/0.9", "GET /\r\n", 400},
      {"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\n", 505},
      {"HTTP/1.2", "GET / HTTP/1.2\r\n", 505},
      {"version in lower case", "GET / http/1.1\r\n", 400},
      {"long version", "GET / HTTP/1.10\r\n", 400},
      {"two spaces", "GET  / HTTP/1.1\r\n", 400},
      {"space in the target", "GET /a b HTTP/1.1\r\n", 400, "target"},
      {"tab for a space", "GET\t/ HTTP/1.1\r\n", 400},
      {"NUL in the target", "GET /\0 HTTP/1.1\r\n"s, 400},
      {"DEL in the target", "GET /\x7f HTTP/1.1\r\n", 400},
      {"UTF-8 in the target", "GET /\xc3\xa4 HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"odd method", "G@T / HTTP/1.1\r\n", 400, "method"},
      {"no request, and no line's end", "\"hello\"}", 400, "method"},
      {"no method", " / HTTP/1.1\r\n", 400, "method"},
      {"part of a method", "GE", 0},
      {"part of an empty line", "\r", 0},
      {"long method", std::string(40, 'A') + " / HTTP/1.1\r\n", 400},
      {"bare LF after the first line", "GET / HTTP/1.1\nHost: x\r\n\r\n", 400, "CR LF"},
      {"bare LF after a field", "GET / HTTP/1.1\r\nHost: x\n\r\n", 400, "CR LF"},
      {"bare LF ends the header", kGet + "\n", 400, "CR LF"},
      {"bare CR in a value", kGet + "A: b\rc\r\n\r\n", 400, "value"},
      {"NUL in a value", kGet + "A: b\0\r\n\r\n"s, 400, "value"},
      {"control byte in a value", kGet + "A: \x01\r\n\r\n", 400},
      {"UTF-8 in a value", kGet + "A: \xc3\xa4\r\n\r\n", 200},
      {"UTF-8 in a name", kGet + "\xc3\xa4: b\r\n\r\n", 400, "name"},
      {"space before the colon", kGet + "A : b\r\n\r\n", 400, "name"},
      {"tab before the colon", kPost + "Content-Length\t: 0\r\n\r\n", 400, "name"},
      {"no name", kGet + ": b\r\n\r\n", 400},
      {"no colon", kGet + "A\r\n\r\n", 400, "colon"},
      {"no value", kGet + "A:\r\n\r\n", 200},
      {"folded by a space", kGet + "A: b\r\n c\r\n\r\n", 400, "folded"},
      {"folded by a tab", kGet + "A: b\r\n\tc\r\n\r\n", 400, "folded"},
      {"first field folded", "GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400, "folded"},
      {"header too large", kGet + "A: " + std::string(3000, 'a'), 431, "larger than 2048"},
      {"first line too large", "GET /" + std::string(3000, 'a'), 431},
      {"too many fields",
       kGet +
           [] {
             std::string many;
             for (int i = 0; i < 20; ++i) many += "A: b\r\n";
             return many;
           }(),
       431, "more than 20"},
      {"no Host", "GET / HTTP/1.1\r\n\r\n", 400, "Host"},
      {"two Hosts", kGet + "Host: x\r\n\r\n", 400, "Host"},
      {"two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400},
      {"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 200},
      {"Host with a user", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400, "bad Host"},
      {"Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
      {"two names in Host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
      {"absolute form", "GET http://x:1/a?b HTTP/1.1\r\nHost: X:1\r\n\r\n", 200},
      {"absolute form, other Host", "GET http://y/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "target"},
      {"absolute form, other port", "GET http://x:2/ HTTP/1.1\r\nHost: x:1\r\n\r\n", 400},
      {"absolute form without Host", "GET http://x/ HTTP/1.1\r\n\r\n", 400},
      {"other scheme", "GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"relative target", "GET health HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"CONNECT", "CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "CONNECT"},
      {"CONNECT to a path", "CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "CONNECT"},
      {"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200},
      {"GET *", "GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400},
      {"length", kPost + "Content-Length: 2\r\n\r\n{}", 200},
      {"length with zeros", kPost + "Content-Length: 0002\r\n\r\n{}", 200},
      {"length with many zeros", kPost + "Content-Length: 0000000000000000002\r\n\r\n{}", 413},
      {"empty length", kPost + "Content-Length:\r\n\r\n", 400, "Content-Length"},
      {"signed length", kPost + "Content-Length: +2\r\n\r\n{}", 400},
      {"negative length", kPost + "Content-Length: -2\r\n\r\n{}", 400},
      {"hex length", kPost + "Content-Length: 0x2\r\n\r\n{}", 400},
      {"length with a space", kPost + "Content-Length: 1 2\r\n\r\n{}", 400},
      {"length as a list", kPost + "Content-Length: 2, 2\r\n\r\n{}", 400},
      {"two equal lengths", kPost + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400},
      {"two lengths", kPost + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "more than"},
      {"length of 2^64", kPost + "Content-Length: 18446744073709551616\r\n\r\n", 413},
      {"length of 2^64 + 2", kPost + "Content-Length: 18446744073709551618\r\n\r\n{}", 413},
      {"length over the limit", kPost + "Content-Length: 1001\r\n\r\n", 413, "1000 bytes"},
      {"chunked", kChunked + "1\r\na\r\nA\r\n0123456789\r\n0\r\n\r\n", 200},
      {"chunked in capitals", kPost + "Transfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", 200},
      {"gzip, chunked", kPost + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400,
       "chunked"},
      {"chunked, gzip", kPost + "Transfer-Encoding: chunked, gzip\r\n\r\n", 400},
      {"chunked twice", kPost + "Transfer-Encoding: chunked, chunked\r\n\r\n", 400},
      {"two encodings", kPost + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
       400},
      {"identity beside chunked",
       kPost + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"quoted encoding", kPost + "Transfer-Encoding: \"chunked\"\r\n\r\n", 400},
      {"vertical tab before chunked",
       kPost + "Transfer-Encoding: \x0b"
               "chunked\r\n\r\n",
       400},
      {"empty encoding", kPost + "Transfer-Encoding:\r\n\r\n", 400},
      {"length and chunked",
       kPost + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "together"},
      {"chunked in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
       "HTTP/1.0"},
      {"no chunk size", kChunked + "\r\n", 400, "chunk size"},
      {"chunk size with 0x", kChunked + "0x1\r\n", 400},
      {"signed chunk size", kChunked + "+1\r\n", 400},
      {"negative chunk size", kChunked + "-1\r\n", 400},
      {"space before a chunk size", kChunked + " 1\r\n", 400},
      {"space after a chunk size", kChunked + "1 \r\n", 400},
      {"chunk size over 64 bits", kChunked + "10000000000000001\r\na\r\n", 400},
      {"chunk size of 2^64 - 1", kChunked + "ffffffffffffffff\r\n", 413},
      {"chunks over the limit", kChunked + "3e8\r\n" + std::string(1000, 'a') + "\r\n1\r\n", 413},
      {"chunk longer than its size", kChunked + "1\r\nab\r\n", 400, "longer"},
      {"chunk without its end", kChunked + "1\r\na1\r\n", 400},
      {"chunk ended by LF", kChunked + "1\r\na\n", 400},
      {"chunk size ended by LF", kChunked + "1\na\r\n", 400, "CR LF"},
      {"extension", kChunked + "1;a=b;c=\"d\"\r\na\r\n0;e\r\n\r\n", 200},
      {"LF in an extension", kChunked + "1;a\nb\r\n", 400},
      {"CR in an extension", kChunked + "1;a\rb\r\na\r\n", 400},
      {"long extension", kChunked + "1;" + std::string(5000, 'a'), 400, "longer than 4096"},
      {"extensions in all",
       kChunked +
           [] {
             std::string many;
             for (int i = 0; i < 30; ++i) many += "1;" + std::string(100, 'a') + "\r\na\r\n";
             return many;
           }(),
       400, "extensions"},
      {"trailer", kChunked + "0\r\nA: b\r\n\r\n", 200},
      {"bad trailer", kChunked + "0\r\nA b\r\n\r\n", 400},
      {"folded trailer", kChunked + "0\r\nA: b\r\n c\r\n\r\n", 400},
      {"long trailer", kChunked + "0\r\nA: " + std::string(3000, 'a'), 400, "larger"},
  };
}

// Every row gives the same in one piece and byte by byte.
TEST(RequestParser, Table) {
  HttpLimits limits = small_limits();
  for (const Row& row : table()) {
    SCOPED_TRACE(row.what);
    RequestParser whole(limits), bytewise(limits);
    whole.put(row.bytes);
    for (char c : row.bytes) bytewise.put({&c, 1});
    for (const RequestParser* p : {&whole, &bytewise}) {
      EXPECT_EQ(outcome(*p), row.status) << p->reason();
      EXPECT_NE(p->reason().find(row.says), std::string::npos) << p->reason();
      EXPECT_EQ(p->reason().find('\n'), std::string::npos);
    }
    EXPECT_EQ(whole.reason(), bytewise.reason());
    EXPECT_EQ(whole.request().body, bytewise.request().body);
  }
}

// In one piece the size is seen first, byte by byte the method: the first reason stands.
TEST(RequestParser, TooLongAndNoMethod) {
  HttpLimits limits = small_limits();
  std::string line(3000, 'A');
  RequestParser whole(limits), bytewise(limits);
  whole.put(line);
  for (char c : line) bytewise.put({&c, 1});
  EXPECT_EQ(whole.status(), 400);
  EXPECT_EQ(bytewise.status(), 400);
  EXPECT_EQ(whole.reason(), bytewise.reason());
}

TEST(RequestParser, PartsOfARequest) {
  HttpLimits limits;
  RequestParser p(limits);
  std::string one =
      "POST http://x:1/a%20b?c=d?e HTTP/1.1\r\nHost: x:1\r\nX-Some:  \tvalue \t\r\n"
      "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n\r\n";
  std::string body = "2;x\r\n{\"\r\n3\r\n\r\n}\r\n0\r\nAuthorization: Bearer x\r\n\r\n";
  EXPECT_EQ(p.put(one), one.size());
  EXPECT_TRUE(p.head_done() && !p.done() && p.expects_continue() && p.keep_alive());
  EXPECT_EQ(p.put(body + "GET"), body.size());
  ASSERT_TRUE(p.done());
  HttpRequest r = p.take();
  EXPECT_EQ(r.method, "POST");
  EXPECT_EQ(r.path, "/a%20b");
  EXPECT_EQ(r.query, "c=d?e");
  EXPECT_EQ(r.header("x-some"), "value");
  EXPECT_EQ(r.body, "{\"\r\n}");
  EXPECT_EQ(r.header("authorization"), "");  // a trailer is no header
}

TEST(RequestParser, KeepAlive) {
  struct {
    const char *version, *header;
    bool keep;
  } rows[] = {{"1.1", "", true},
              {"1.1", "Connection: close\r\n", false},
              {"1.1", "Connection: CLOSE , x\r\n", false},
              {"1.1", "Connection: close, keep-alive\r\n", false},
              {"1.1", "Connection: x\r\nConnection: ,,close\r\n", false},
              {"1.1", "Connection: closed\r\n", true},
              {"1.0", "", false},
              {"1.0", "Connection: keep-alive\r\n", true}};
  HttpLimits limits;
  for (const auto& row : rows) {
    RequestParser p(limits);
    p.put(strf("GET / HTTP/%s\r\nHost: x\r\n%s\r\n", row.version, row.header));
    ASSERT_TRUE(p.done()) << row.header;
    EXPECT_EQ(p.keep_alive(), row.keep) << row.version << row.header;
  }
}

TEST(RequestParser, AMillionTinyChunks) {
  HttpLimits limits;
  limits.body_bytes = 2'000'000;
  RequestParser p(limits);
  p.put(kChunked);
  std::string some;
  for (int i = 0; i < 1000; ++i) some += "1\r\na\r\n";
  for (int i = 0; i < 1000; ++i) p.put(some);
  p.put("0\r\n\r\n");
  ASSERT_TRUE(p.done());
  EXPECT_EQ(p.request().body, std::string(1'000'000, 'a'));
}

// Mutants of good and of smuggling requests: never accepted where the strict reader refuses or
// frames otherwise, and the same however the bytes arrive.
class Mutants {
 public:
  explicit Mutants(uint64_t seed) : random_(seed) {
    for (const Row& row : table()) {
      if (row.bytes.size() < 400) seeds_.push_back(row.bytes);
    }
  }
  std::string next() {
    std::string m = seeds_[pick(seeds_.size())];
    if (pick(4) == 0) m += seeds_[pick(seeds_.size())];
    for (size_t n = pick(3) + 1; n > 0; --n) change(m);
    return m;
  }
  size_t pick(size_t n) { return static_cast<size_t>(random_() % n); }

 private:
  void change(std::string& m) {
    static const std::vector<std::string> kWords = {"\r\n",
                                                    "\n",
                                                    "\r",
                                                    " ",
                                                    "\t",
                                                    ":",
                                                    ",",
                                                    ";",
                                                    "0",
                                                    "1",
                                                    "ff",
                                                    "\r\n\r\n",
                                                    "0\r\n\r\n",
                                                    "Content-Length: 1\r\n",
                                                    "Content-Length: 5",
                                                    "Transfer-Encoding: chunked\r\n",
                                                    "chunked",
                                                    "gzip, ",
                                                    "HTTP/1.0",
                                                    "HTTP/1.1",
                                                    "Host: x\r\n",
                                                    "GET / HTTP/1.1\r\n",
                                                    std::string(1, '\0'),
                                                    "\x0b",
                                                    "\x80"};
    size_t at = pick(m.size() + 1);
    switch (pick(5)) {
      case 0:
        m.insert(at, kWords[pick(kWords.size())]);
        break;
      case 1:
        m.erase(at, pick(6) + 1);
        break;
      case 2:
        if (at < m.size()) m[at] = static_cast<char>(pick(256));
        break;
      case 3:
        m.insert(at, m.substr(pick(m.size() + 1), pick(40)));
        break;
      default: {
        const std::string& other = seeds_[pick(seeds_.size())];
        m.replace(at, pick(30), other.substr(pick(other.size()), pick(30)));
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> seeds_;
};

TEST(RequestParser, NoMutantIsAmbiguous) {
  const bool full = std::getenv("SLUICE_TEST_FULL") != nullptr;
  const int count = full ? 1'000'000 : 200'000;
  HttpLimits limits = small_limits();
  Mutants mutants(8);
  int accepted = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    const std::string bytes = mutants.next();
    RequestParser whole(limits), cut(limits);
    size_t used = whole.put(bytes);
    size_t at = mutants.pick(bytes.size() + 1);
    size_t first = cut.put(std::string_view(bytes).substr(0, at));
    if (first == at) first += cut.put(std::string_view(bytes).substr(at));
    ASSERT_EQ(outcome(cut), outcome(whole)) << quote(bytes);
    if (whole.done()) {
      auto strict = read_strictly(bytes);
      ASSERT_TRUE(strict) << quote(bytes);
      ASSERT_EQ(strict->end, used) << quote(bytes);
      ASSERT_EQ(first, used);
      ASSERT_EQ(strict->body, whole.request().body);
    }
    accepted += whole.done();
    refused += whole.refused();
  }
  EXPECT_GT(accepted, count / 40);
  EXPECT_GT(refused, count / 10);
}

}  // namespace
}  // namespace sluice
