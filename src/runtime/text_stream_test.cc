// Events to text: characters whole, nothing shown that a stop string may still take, nothing held
// longer than that.
#include "runtime/text_stream.h"

#include <random>

#include <gtest/gtest.h>

#include "core/stop.h"
#include "load/open.h"
#include "tensor/gguf.h"

namespace sluice {
namespace {

const Tokenizer& tokenizer() {
  static std::unique_ptr<Tokenizer> t = [] {
    auto file = open_gguf(SLUICE_SOURCE_DIR "/tests/golden/models/llama.gguf");
    EXPECT_TRUE(file) << file.error().message;
    return std::move(load_tokenizer(**file).value());
  }();
  return *t;
}

// The token that stands for this one byte.
Token byte_token(char c) {
  for (Token t = 0; t < tokenizer().size(); ++t) {
    if (!tokenizer().is_control(t) && tokenizer().bytes(t) == std::string_view(&c, 1)) return t;
  }
  return kNoToken;
}

Event event_of(char c, uint32_t held = 0) {
  Event e;
  e.token = byte_token(c);
  e.held = held;
  return e;
}

TEST(TextStream, GivesWholeCharactersOnly) {
  TextStream s(tokenizer(), {});
  EXPECT_EQ(s.take(event_of('a')), "a");
  EXPECT_EQ(s.take(event_of('\xC3')), "");
  EXPECT_EQ(s.take(event_of('\xA9')), "\xC3\xA9");
  EXPECT_EQ(s.take(event_of('\xE2')), "");
  Event end;
  end.finish = Finish::cancelled;
  EXPECT_EQ(s.take(end), "\xEF\xBF\xBD");  // half a character at the end
}

TEST(TextStream, HoldsWhatMayBecomeAStopAndLetsItGo) {
  TextStream s(tokenizer(), {});
  EXPECT_EQ(s.take(event_of('x', 0)), "x");
  EXPECT_EQ(s.take(event_of('E', 1)), "");
  EXPECT_EQ(s.take(event_of('N', 2)), "");
  EXPECT_EQ(s.take(event_of('E', 1)), "EN");  // "ENE": only the last letter may begin one
  EXPECT_EQ(s.take(event_of('y', 0)), "Ey");
  EXPECT_EQ(s.take(event_of('E', 1)), "");
  Event end;
  end.finish = Finish::length;
  EXPECT_EQ(s.take(end), "E");
}

TEST(TextStream, CutsTheStopStringOrKeepsIt) {
  for (bool include : {false, true}) {
    TextStream s(tokenizer(), {.include_stop = include});
    EXPECT_EQ(s.take(event_of('a', 0)), "a");
    EXPECT_EQ(s.take(event_of('E', 1)), "");
    Event last = event_of('N');
    last.finish = Finish::stop;
    last.cut = 2;
    EXPECT_EQ(s.take(last), include ? "EN" : "");
  }
}

TEST(TextStream, EndTokensGiveNoTextAndSpecialTokensOnlyWhenAsked) {
  for (bool skip : {false, true}) {
    TextStream s(tokenizer(), {.skip_special = skip});
    Event special;
    special.token = tokenizer().eos();
    EXPECT_EQ(s.take(special), skip ? "" : "<|endoftext|>");
    special.is_end_token = true;
    special.finish = Finish::stop;
    EXPECT_EQ(s.take(special), "");
  }
}

// With the matcher in front: at every moment the text given out and what is held back are all the
// text there is, and what is held back is no longer than a stop string that may come.
TEST(TextStream, WithAMatcherShowsAllItMayAndNoMore) {
  std::string letters = "aab\xC3\xA9";
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 rng(seed);
    std::vector<std::string> stops = {"abab", "aa\xC3\xA9"};
    StopMatcher matcher(stops);
    TextStream stream(tokenizer(), {});
    std::string bytes, shown;
    for (int i = 0; i < 40; ++i) {
      std::string next = rng() % 4 == 0 ? "\xC3\xA9" : std::string(1, letters[rng() % 3]);
      bool stopped = false;
      for (char c : next) {
        bytes += c;
        StopMatcher::Match m = matcher.feed(stops, std::string_view(&c, 1));
        Event e = event_of(c, m.held);
        if (m.found) e.finish = Finish::stop, e.cut = m.cut, e.trail = m.trail;
        shown += stream.take(e);
        stopped = stopped || m.found;
      }
      size_t stop = std::min(bytes.find(stops[0]), bytes.find(stops[1]));
      ASSERT_EQ(stopped, stop != std::string::npos);
      if (stopped) {
        ASSERT_EQ(shown, bytes.substr(0, stop));
        break;
      }
      size_t held = 0;
      for (const std::string& s : stops) {
        for (size_t n = 1; n < s.size(); ++n) {
          if (bytes.ends_with(s.substr(0, n))) held = std::max(held, n);
        }
      }
      ASSERT_EQ(shown, bytes.substr(0, bytes.size() - held));
    }
  }
}

}  // namespace
}  // namespace sluice
