// str.encode and bytes.decode, in UTF-8, ASCII and Latin-1.
#include <algorithm>

#include "base/str.h"
#include "text/jinja/eval.h"
#include "text/jinja/methods.h"
#include "text/unicode.h"

namespace sluice::jinja {
namespace {

// What a codec can write, and what it does with the rest.
struct Codec {
  char32_t most = 0x10FFFF;
  enum { strict, ignore, replace } errors = strict;
};

Codec find_codec(Machine& m, const Bound& a) {
  Codec codec;
  std::string name = a.text(0, "utf-8").str(), errors = a.text(1, "strict").str();
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c == '_' ? '-' : c);
  if (name == "ascii" || name == "us-ascii") {
    codec.most = 0x7F;
  } else if (name == "latin-1" || name == "latin1" || name == "iso-8859-1") {
    codec.most = 0xFF;
  } else if (name != "utf-8" && name != "utf8") {
    m.fail("unknown encoding: " + quote(name));
  }
  if (errors == "ignore") {
    codec.errors = Codec::ignore;
  } else if (errors == "replace") {
    codec.errors = Codec::replace;
  } else if (errors != "strict") {
    m.fail("unknown error handler name " + quote(errors));
  }
  return codec;
}

}  // namespace

Value str_encode(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "encode", args, {"encoding", "errors"});
  Codec codec = find_codec(m, a);
  std::string_view s = self.text().view();
  m.meter.walk(s.size());
  Values bytes(m.meter);
  bytes.reserve(s.size());
  for (size_t i = 0; i < s.size();) {
    size_t begin = i;
    char32_t c = next_code_point(s, i);
    if (codec.most > 0xFF) {
      for (; begin < i; ++begin)
        bytes.push_back(Value::integer(static_cast<unsigned char>(s[begin])));
    } else if (c <= codec.most) {
      bytes.push_back(Value::integer(static_cast<int64_t>(c)));
    } else if (codec.errors == Codec::replace) {
      bytes.push_back(Value::integer('?'));
    } else if (codec.errors == Codec::strict) {
      m.fail("a character cannot be encoded");
    }
  }
  return make_seq(m.meter, std::move(bytes), SeqKind::bytes);
}

// Never trusted: where the bytes came from is not known any more.
Value bytes_decode(Machine& m, const Value& self, CallArgs& args) {
  Bound a(m, "decode", args, {"encoding", "errors"});
  Codec codec = find_codec(m, a);
  m.meter.walk(8 * self.items().size());  // a value per byte
  m.meter.require(2 * self.items().size());
  std::string raw, text;
  for (const Value& b : self.items()) raw.push_back(static_cast<char>(b.as_int()));
  for (size_t i = 0; i < raw.size();) {
    auto byte = static_cast<unsigned char>(raw[i]);
    Utf8Step step = utf8_step(std::string_view(raw).substr(i));
    size_t size = codec.most > 0xFF ? step.size : byte <= codec.most ? 1 : 0;
    if (size > 0) {
      append_utf8(text, codec.most > 0xFF ? code_point_at(raw, i).value : byte);
    } else if (codec.errors == Codec::strict) {
      m.fail("a byte cannot be decoded");
    } else {
      if (codec.errors == Codec::replace) append_utf8(text, 0xFFFD);
      size = codec.most > 0xFF ? std::max<size_t>(step.bad, 1) : 1;
    }
    i += size;
  }
  return make_string(m.meter, std::move(text), false);
}

}  // namespace sluice::jinja
