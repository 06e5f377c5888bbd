#include "runtime/ledger.h"

#include <gtest/gtest.h>

#include "exec/kv_cache.h"

namespace sluice {
namespace {

Result<KvType> type_of(const char* name, int head_dim, const DeviceMemory* device = nullptr) {
  std::optional<std::optional<KvType>> kv = value_named(kKvTypes, name);
  if (!kv) return Error{400, "no such type"};
  EngineOptions o;
  o.kv_type = *kv;
  return kv_type_of(o, head_dim, device);
}

TEST(KvTypeOf, Int8HasGroupsOf32UnlessAsked) {
  EXPECT_EQ(type_of("auto", 64)->type, DType::f16);
  for (auto [name, group] :
       {std::pair{"int8", 32}, {"int8:8", 8}, {"int8:32", 32}, {"int8:64", 64}}) {
    Result<KvType> t = type_of(name, 128);
    ASSERT_TRUE(t);
    EXPECT_EQ(t->type, DType::i8);
    EXPECT_EQ(t->group, group);
  }
}

TEST(KvTypeOf, RefusesWhatDoesNotFit) {
  EXPECT_EQ(type_of("int8", 80).error().message,
            "--kv int8: heads of 80 dimensions are not whole groups of 32; use int8:8");
  EXPECT_EQ(type_of("int8:64", 96).error().message,
            "--kv int8:64: heads of 96 dimensions are not whole groups of 64; use int8:32");
  DeviceMemory gpu;
  EXPECT_EQ(type_of("int8", 64, &gpu).error().message,
            "--kv int8: on a GPU the cache has the type of the activations (--dtype) or f8");
  EXPECT_FALSE(type_of("f8", 64));
  EXPECT_FALSE(type_of("int8:16", 64));
}

TEST(KvTypeOf, BytesCountTheScales) {
  ModelShape m;
  m.num_layers = 30;
  m.num_kv_heads = 3;
  m.head_dim = 64;
  EXPECT_EQ(m.kv_bytes_per_token(DType::f16), 30U * 3 * 2 * 128);
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 8}), 30U * 3 * 2 * 80);   // 1.6 times as many tokens
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 32}), 30U * 3 * 2 * 68);  // 1.88
  EXPECT_EQ(m.kv_bytes_per_token({DType::i8, 64}), 30U * 3 * 2 * 66);  // 1.94
  EXPECT_EQ(KvCache::bytes_per_block(m, one_cache_group(30), {DType::i8, 32}, 16),
            16 * m.kv_bytes_per_token({DType::i8, 32}));
}

}  // namespace
}  // namespace sluice
