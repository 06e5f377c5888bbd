#include "server/vllm_request.h"

#include <gtest/gtest.h>

#include "base/protobuf.h"
#include "base/random.h"
#include "server/grpc_frames.h"

namespace sluice {
namespace {

std::string nested_field(uint32_t field, std::string_view message) {
  std::string out;
  ProtoWriter(out).bytes(field, message);
  return out;
}

std::string good_request() {
  std::string sampling, decoding, bias, stopping, response, transfer, out;
  ProtoWriter(sampling).varint(1, 2);
  ProtoWriter(sampling).varint(5, static_cast<uint64_t>(int64_t{-7}));
  ProtoWriter(bias).varint(1, 9);
  ProtoWriter(bias).real(2, -1.5f);
  ProtoWriter(decoding).real(3, 1.25f);
  ProtoWriter(decoding).bytes(4, bias);
  ProtoWriter(decoding).bytes(12, nested_field(1, std::string("\x05\x06")));
  ProtoWriter(stopping).varint(1, 33);
  ProtoWriter(stopping).bytes(4, "END");
  ProtoWriter(response).varint(5, 1);
  transfer = to_proto_struct({{"a", 1}, {"b", json::array{true, nullptr, "x"}}, {"c", 0.5}});
  ProtoWriter w(out);
  w.bytes(4, nested_field(1, std::string("\x01\x80\x02", 3)));
  w.real(5, 0.5f);
  w.bytes(6, sampling);
  w.bytes(7, decoding);
  w.bytes(8, stopping);
  w.bytes(9, response);
  w.bytes(10, nested_field(3, transfer));
  w.varint(12, static_cast<uint64_t>(int64_t{-3}));
  return out;
}

TEST(VllmRequest, Fields) {
  VllmFields f;
  const Refusal refused = parse_vllm_generate(good_request(), "0", {}, f);
  ASSERT_FALSE(refused) << refused->message;
  EXPECT_EQ(std::get<std::vector<Token>>(f.prompt), (std::vector<Token>{1, 256}));
  EXPECT_EQ(f.sampling.temperature, 0.5f);
  EXPECT_EQ(f.n, 2);
  EXPECT_EQ(f.sampling.seed, static_cast<uint64_t>(int64_t{-7}));
  EXPECT_EQ(f.sampling.repetition_penalty, 1.25f);
  ASSERT_EQ(f.sampling.logit_bias.size(), 1u);
  EXPECT_EQ(f.sampling.logit_bias[0].first, 9);
  EXPECT_EQ(f.sampling.bad_sequences, (std::vector<std::vector<Token>>{{5, 6}}));
  EXPECT_EQ(f.max_tokens, 33);
  EXPECT_EQ(f.stop, std::vector<std::string>{"END"});
  EXPECT_EQ(f.priority, -3);
  EXPECT_TRUE(f.ids && f.text && !f.scores);
}

TEST(VllmRequest, Defaults) {
  VllmFields f;
  f.sampling.temperature = 0.9f;
  std::string text;
  ProtoWriter(text).bytes(3, "hello");
  ASSERT_FALSE(parse_vllm_generate(text, "", {}, f));
  EXPECT_EQ(f.sampling.temperature, 0);
  EXPECT_FALSE(f.max_tokens);
  ProtoWriter(text).varint(99, 1);
  f = {};
  ASSERT_FALSE(parse_vllm_generate(text, "", {}, f));
  EXPECT_EQ(f.unknown, std::vector<std::string>{"GenerateRequest 99"});
  for (int k = 0; k < 1000; ++k) ProtoWriter(text).varint(99, 1);
  f = {};
  ASSERT_FALSE(parse_vllm_generate(text, "", {}, f));
  EXPECT_EQ(f.unknown.size(), 32u);
  EXPECT_TRUE(parse_vllm_generate(text, "1", {}, f));
  EXPECT_TRUE(parse_vllm_generate("", "", {}, f));
}

// Changed bytes: a value or a refusal with a line of text.
TEST(VllmRequest, ChangedBytes) {
  const std::string good = good_request();
  size_t num_refused = 0;
  for (uint64_t i = 0; i < 20'000; ++i) {
    std::string bad = good;
    for (uint64_t k = 0; k < 1 + i % 3; ++k) {
      const uint64_t draw = mix_bits(i * 8 + k + 1);
      bad[draw % bad.size()] = static_cast<char>(draw >> 32);
    }
    if (i % 5 == 0) bad.resize(mix_bits(i) % bad.size());
    VllmFields f;
    const Refusal refused = parse_vllm_generate(bad, "", {}, f);
    if (!refused) continue;
    ++num_refused;
    ASSERT_GE(refused->status, 400);
    ASSERT_FALSE(refused->message.empty());
  }
  EXPECT_GT(num_refused, 5'000u);
}

TEST(GrpcFrames, InPieces) {
  std::string bytes;
  append_grpc_message(bytes, "first");
  append_grpc_message(bytes, "");
  append_grpc_status(bytes, 504, "too late");
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    std::string_view part = std::string_view(bytes).substr(0, cut);
    GrpcFrame frame;
    size_t num = 0;
    while (take_grpc_frame(part, frame)) ++num;
    EXPECT_LT(num, 3u);
  }
  std::string_view rest = bytes;
  GrpcFrame frame;
  ASSERT_TRUE(take_grpc_frame(rest, frame));
  EXPECT_EQ(frame.payload, "first");
  ASSERT_TRUE(take_grpc_frame(rest, frame));
  EXPECT_TRUE(frame.payload.empty() && frame.kind == GrpcFrame::message);
  ASSERT_TRUE(take_grpc_frame(rest, frame));
  EXPECT_EQ(frame.kind, GrpcFrame::status);
  EXPECT_EQ(frame.http_status, 504);
  EXPECT_EQ(grpc_code(frame.http_status), 4);
  EXPECT_TRUE(rest.empty());
}

}  // namespace
}  // namespace sluice
