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

// A connection that is blocked in a write has been woken already, and must hear of the cut.
TEST(Responder, CutWakesAgain) {
  Wakes w;
  Responder r(w.options());
  r.start({});
  r.write("x");
  EXPECT_EQ(w.count, 1);
  r.write(std::string(1000, 'x'));
  EXPECT_TRUE(r.too_slow());
  EXPECT_EQ(w.count, 2);
}

TEST(Responder, PiecesAreMadeWhenTheLastIsTaken) {
  Wakes w;
  Responder r(w.options());
  int made = 0;
  r.send({200, "text/plain", "", {}}, [&](std::string& out) {
    out += std::string(40'000, 'a');
    return ++made < 4;
  });
  EXPECT_EQ(made, 2);  // enough to know that it is long
  std::string out;
  EXPECT_FALSE(r.take(out).done);
  EXPECT_NE(out.find("Transfer-Encoding: chunked"), out.npos);
  EXPECT_EQ(made, 2);
  Responder::Progress p = r.take(out);
  EXPECT_TRUE(p.made && !p.done);
  EXPECT_EQ(made, 3);
  EXPECT_EQ(out.size(), 40'000 + std::string("9c40\r\n\r\n").size());
  EXPECT_TRUE(r.take(out).done);
  EXPECT_TRUE(out.ends_with("aaa\r\n0\r\n\r\n"));
}

TEST(Responder, UnreadBytesAreCounted) {
  auto unread = std::make_shared<UnreadBytes>(1'000'000);
  Wakes w;
  Responder::Options o = w.options();
  o.unread = unread;
  auto r = std::make_unique<Responder>(o);
  r->start({});
  r->write("0123456789");
  size_t queued = unread->total();
  std::string out;
  r->take(out);
  EXPECT_EQ(out.size(), queued);
  EXPECT_EQ(unread->total(), queued);  // not written yet
  r->write("x");
  EXPECT_EQ(unread->total(), queued + 6);
  r->wrote();
  EXPECT_EQ(unread->total(), 6u);
  r.reset();
  EXPECT_EQ(unread->total(), 0u);
}

TEST(UnreadBytes, OverTheLimitOnlyAShareIsAllowed) {
  UnreadBytes u(1000);
  EXPECT_TRUE(u.allows(0, 1000));
  u.change(0, 800);
  u.change(0, 200);
  EXPECT_FALSE(u.allows(800, 1));
  EXPECT_TRUE(u.allows(200, 300));  // half of it
  EXPECT_FALSE(u.allows(200, 301));
  EXPECT_TRUE(u.allows(0, 333));  // a third reader's
  u.change(800, 0);
  EXPECT_TRUE(u.allows(200, 800));
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

// A wake that throws (there is no memory for the message) leaves nothing queued: the answer may be
// tried again, and nobody is left asleep with bytes to write.
TEST(Responder, ACallThatThrowsHasQueuedNothing) {
  int failures = 0, wakes = 0;
  Responder::Options o;
  o.wake = [&] {
    if (failures-- > 0) throw std::bad_alloc();
    ++wakes;
  };
  Responder r(std::move(o));
  std::string out;
  failures = 1;
  EXPECT_THROW(r.start({}), std::bad_alloc);
  EXPECT_FALSE(r.take(out).done);
  EXPECT_EQ(out, "");
  r.start({});
  r.take(out);
  EXPECT_NE(out.find("Transfer-Encoding"), std::string::npos);
  failures = 1;
  EXPECT_THROW(r.write("lost"), std::bad_alloc);
  r.write("kept");
  failures = 1;
  r.take(out);
  EXPECT_EQ(out, "4\r\nkept\r\n");
  EXPECT_THROW(r.finish(), std::bad_alloc);
  EXPECT_FALSE(r.take(out).done);
  r.finish();
  EXPECT_TRUE(r.take(out).done);
  EXPECT_EQ(wakes, 3);
}

TEST(Responder, AbortCutsTheConnectionWithoutMemory) {
  Responder::Options o;
  o.wake = [] { throw std::bad_alloc(); };
  Responder r(std::move(o));
  r.abort();
  std::string out;
  Responder::Progress p = r.take(out);
  EXPECT_TRUE(p.too_slow);
  EXPECT_FALSE(p.done);
  EXPECT_TRUE(r.broken());
  EXPECT_FALSE(r.too_slow()) << "not the reader's fault";
}

}  // namespace
}  // namespace sluice
