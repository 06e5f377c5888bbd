#include "net/responder.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

struct Wakes {
  int count = 0;
  Responder::Options options() {
    Responder::Options o;
    o.max_pending = 1000;
    o.wake = [this] { ++count; };
    return o;
  }
};

TEST(Responder, WholeResponse) {
  Wakes w;
  Responder r(w.options());
  r.send({404, "text/plain", "gone", {{"x-a", "b\r\nEvil: 1"}}});
  r.send({200, "text/plain", "again", {}});
  std::string out;
  Responder::Progress p = r.take(out);
  EXPECT_TRUE(p.done && p.keep_alive);
  EXPECT_EQ(w.count, 1);
  EXPECT_EQ(out,
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nx-a: bEvil: 1\r\n"
            "Content-Length: 4\r\nConnection: keep-alive\r\n\r\ngone");
}

TEST(Responder, StreamIsChunkedAndWakesOncePerTake) {
  Wakes w;
  Responder r(w.options());
  r.start({200, "text/event-stream", "", {}});
  r.write("0123456789abcdefg");
  r.write("");
  EXPECT_EQ(w.count, 1);
  std::string out;
  EXPECT_FALSE(r.take(out).done);
  EXPECT_TRUE(out.ends_with("\r\n\r\n11\r\n0123456789abcdefg\r\n"));
  r.write("x");
  r.finish();
  r.write("late");
  EXPECT_EQ(w.count, 2);
  EXPECT_TRUE(r.take(out).done);
  EXPECT_EQ(out, "1\r\nx\r\n0\r\n\r\n");
}

TEST(Responder, OldClientsStreamEndsWithTheConnection) {
  Wakes w;
  Responder::Options o = w.options();
  o.chunked = false;
  Responder r(o);
  r.start({});
  r.write("abc");
  r.finish();
  std::string out;
  EXPECT_FALSE(r.take(out).keep_alive);
  EXPECT_TRUE(out.ends_with("Connection: close\r\n\r\nabc"));
}

TEST(Responder, SlowReaderIsBounded) {
  Wakes w;
  Responder r(w.options());
  r.start({});
  std::string out, piece(400, 'x');
  r.take(out);
  r.write(piece);
  r.write(piece);
  EXPECT_FALSE(r.take(out).too_slow);
  r.write(piece);
  r.write(piece);
  r.write(piece);
  EXPECT_TRUE(r.take(out).too_slow);
  EXPECT_LE(out.size(), 1000u);
}

TEST(Responder, HeadHasNoBody) {
  Wakes w;
  Responder::Options o = w.options();
  o.head = true;
  Responder r(o);
  r.send({200, "text/plain", "body", {}});
  std::string out;
  r.take(out);
  EXPECT_TRUE(out.ends_with("\r\n\r\n"));
  EXPECT_NE(out.find("Content-Length: 4"), std::string::npos);
}

TEST(Responder, OnClosedIsCalledOnceAndOnlyWhenIncomplete) {
  int calls = 0;
  auto count = [&] { ++calls; };
  Wakes w;
  Responder gone(w.options());
  gone.on_closed(count);
  gone.close(false);
  gone.close(false);
  EXPECT_EQ(calls, 1);
  gone.on_closed(count);  // too late: told at once
  EXPECT_EQ(calls, 2);
  gone.send({});
  std::string out;
  gone.take(out);
  EXPECT_TRUE(out.empty());

  Responder complete(w.options());
  complete.on_closed(count);
  complete.close(true);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace sluice
