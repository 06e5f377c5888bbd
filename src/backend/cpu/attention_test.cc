#include "backend/cpu/attention.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <tuple>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/quantize.h"
#include "backend/paged_batch.h"
#include "backend/ref/ref_backend.h"
#include "base/test_slice.h"

namespace sluice {
namespace {

using Part = PagedBatch::Part;

// A step-by-step run of some sequences, all of whose qkv rows are given in advance: sequence s at
// position p is row s * max_positions + p.
class Replay {
 public:
  Replay(const CacheShape& shape, int threads, AttentionVia via = AttentionVia::tiled)
      : shape_(shape),
        backend_(make_cpu_backend({.threads = threads, .pin = false, .attention = via})),
        cache_(shape),
        qkv_(Matrix::random(shape.num_slots * shape.max_positions, shape.qkv_cols(), 1)),
        out_(shape.num_slots * shape.max_positions, shape.out_cols()) {}

  void step(const std::vector<Part>& parts) {
    PagedBatch batch(cache_, parts);
    Matrix qkv = finish(batch), out(batch.view.num_tokens, shape_.out_cols());
    backend_->attention(out.act(), Tensor(qkv).columns(0, shape_.out_cols()), shape_.attention(),
                        batch.view, cache_.layer());
    for (int r = 0; r < batch.view.num_tokens; ++r) {
      std::memcpy(out_.row(source(batch, r)), out.row(r), bytes(out.cols()));
    }
  }

  // K and V alone: what these positions attend to is not asked for.
  void fill(const std::vector<Part>& parts) { finish(PagedBatch(cache_, parts)); }

  // What the oracle says of the rows, from the same cache.
  void expect_like_ref(int slot, int pos, int count) {
    // Queries and weights are codes of 16 bits: each is off by up to 1.5e-5 of the largest.
    const double tolerance = shape_.type == DType::i8 ? 4e-4 : 1e-5;
    PagedBatch batch(cache_, {{slot, pos, count}});
    Matrix q(count, shape_.out_cols()), want(count, shape_.out_cols());
    int64_t first = int64_t{slot} * shape_.max_positions + pos;
    for (int r = 0; r < count; ++r) std::memcpy(q.row(r), qkv_.row(first + r), bytes(q.cols()));
    make_ref_backend()->attention(want.act(), q, shape_.attention(), batch.view, cache_.layer());
    for (int r = 0; r < count; ++r) {
      for (int64_t c = 0; c < q.cols(); ++c) {
        ASSERT_NEAR(out_.row(first + r)[c], want.row(r)[c], tolerance)
            << "position " << pos + r << " column " << c;
      }
    }
  }

  PagedCache& cache() { return cache_; }
  const std::vector<float>& result() const { return out_.data(); }
  float* row(int slot, int pos) { return out_.row(int64_t{slot} * shape_.max_positions + pos); }

 private:
  Matrix finish(const PagedBatch& batch) {
    Matrix qkv(batch.view.num_tokens, shape_.qkv_cols());
    for (int r = 0; r < batch.view.num_tokens; ++r)
      std::memcpy(qkv.row(r), qkv_.row(source(batch, r)), bytes(qkv.cols()));
    QkvSpec spec;
    spec.attention = shape_.attention();
    backend_->finish_qkv(qkv, spec, batch.view, cache_.layer());
    return qkv;
  }
  int64_t source(const PagedBatch& b, int r) const {
    return int64_t{b.row_slot[static_cast<size_t>(r)]} * shape_.max_positions +
           b.positions[static_cast<size_t>(r)];
  }
  static size_t bytes(int64_t cols) { return static_cast<size_t>(cols) * sizeof(float); }

  CacheShape shape_;
  std::unique_ptr<Backend> backend_;
  PagedCache cache_;
  Matrix qkv_, out_;
};

// One sequence through steps whose sizes repeat `chunks` until the end.
std::vector<float> run_chunks(const CacheShape& shape,
                              int threads,
                              std::vector<int> chunks,
                              AttentionVia via = AttentionVia::tiled) {
  Replay run(shape, threads, via);
  size_t next = 0;
  for (int pos = 0; pos < shape.max_positions;) {
    int count = std::min(chunks[next++ % chunks.size()], shape.max_positions - pos);
    run.step({{0, pos, count}});
    pos += count;
  }
  return run.result();
}

const KvType kTypes[] = {DType::f16, DType::f32, {DType::i8, 8}, {DType::i8, 32}, {DType::i8, 64}};

CacheShape with_type(CacheShape shape, KvType type) {
  shape.type = type.type;
  shape.kv_group = type.group;
  return shape;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_FALSE(std::isnan(a[i])) << what << " element " << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << " element " << i << ": " << a[i] << " " << b[i];
  }
}

TEST(CpuAttention, IsWhatTheOracleSays) {
  TestSlice slice;
  for (KvType type : kTypes) {
    for (int dim : {8, 64, 72, 80, 96, 128, 256}) {
      if (type.group > 0 && dim % type.group != 0) continue;
      for (int group : {1, 2, 3, 4, 7, 8}) {
        if (!slice.take()) continue;
        SCOPED_TRACE(testing::Message() << "dim " << dim << " group " << group << " type "
                                        << static_cast<int>(type.type) << ":" << type.group);
        CacheShape shape = with_type({2 * group, 2, dim, 0, DType::f16, 16, 1, 150}, type);
        Replay run(shape, 2);
        for (Part p : {Part{0, 0, 1}, {0, 1, 30}, {0, 31, 1}, {0, 32, 117}, {0, 149, 1}})
          run.step({p});
        for (int pos : {0, 28, 60, 124, 144}) run.expect_like_ref(0, pos, 6);
      }
    }
  }
}

TEST(CpuAttention, LongContextIsWhatTheOracleSays) {
  for (KvType type : {KvType(DType::f16), KvType(DType::i8, 32)}) {
    Replay run(with_type({2, 1, 32, 0, DType::f16, 16, 1, 3000}, type), 2);
    run.step({{0, 0, 2990}});
    for (int pos = 2990; pos < 3000; ++pos) run.step({{0, pos, 1}});
    run.expect_like_ref(0, 1020, 8);
    run.expect_like_ref(0, 2980, 20);
  }
}

TEST(CpuAttention, WideGroupsAreSplit) {
  CacheShape shape{71, 1, 64, 0, DType::f16, 32, 1, 90};
  Replay run(shape, 2);
  run.step({{0, 0, 89}});
  run.step({{0, 89, 1}});
  run.expect_like_ref(0, 60, 30);
}

TEST(CpuAttention, BitsDoNotDependOnChunks) {
  TestSlice slice;
  for (KvType type : kTypes) {
    for (auto [group, dim] :
         {std::pair{1, 64}, {2, 72}, {3, 64}, {4, 128}, {7, 64}, {8, 256}, {3, 96}}) {
      if (type.group > 0 && dim % type.group != 0) continue;
      if (!slice.take()) continue;
      SCOPED_TRACE(testing::Message() << "dim " << dim << " group " << group << " type "
                                      << static_cast<int>(type.type) << ":" << type.group);
      CacheShape shape = with_type({group, 1, dim, 0, DType::f16, 16, 1, 141}, type);
      std::vector<float> one_by_one = run_chunks(shape, 1, {1});
      expect_same_bits(one_by_one, run_chunks(shape, 1, {141}), "whole");
      expect_same_bits(one_by_one, run_chunks(shape, 2, {2, 1, 5}), "small");
      expect_same_bits(one_by_one, run_chunks(shape, 2, {17, 64, 3}), "mixed");
    }
  }
}

TEST(CpuAttention, BitsDoNotDependOnBlockSizeOrThreads) {
  for (KvType type : kTypes) {
    CacheShape shape = with_type({6, 2, 64, 0, DType::f16, 16, 1, 200}, type);
    std::vector<float> want = run_chunks(shape, 1, {100, 1, 1, 1});
    for (int block : {8, 16, 32, 64, 128}) {
      for (int threads : {1, 2, 3}) {
        shape.block_size = block;
        expect_same_bits(want, run_chunks(shape, threads, {1, 90, 7}), "block size, threads");
      }
    }
  }
}

TEST(CpuAttention, BitsDoNotDependOnSplitsOfLongContexts) {
  for (int window : {0, 1500}) {
    KvType type = window > 0 ? KvType(DType::i8, 8) : KvType(DType::f16);
    CacheShape shape = with_type({2, 1, 16, window, DType::f16, 16, 1, 3000}, type);
    std::vector<int> decode_tail{2040, 1, 1, 1, 1, 1, 1, 1, 1, 900, 1, 2, 3, 4, 5, 1, 1, 1, 1, 1};
    decode_tail.resize(100, 1);
    std::vector<float> want = run_chunks(shape, 1, {3000});
    expect_same_bits(want, run_chunks(shape, 3, decode_tail), "decode at the end");
    expect_same_bits(want, run_chunks(shape, 1, decode_tail), "decode at the end, one thread");
    expect_same_bits(want, run_chunks(shape, 2, {700, 1300, 3, 10, 97}), "chunks");
  }
}

// Few heads and several threads: a context of less than a span, or of two, is split at tiles.
TEST(CpuAttention, BitsDoNotDependOnSplitsAtTiles) {
  TestSlice slice;
  for (KvType type : {KvType(DType::f16), KvType(DType::i8, 32)}) {
    for (int window : {0, 300}) {
      for (int length : {1000, 2070}) {
        if (!slice.take()) continue;
        CacheShape shape = with_type({14, 2, 64, window, DType::f16, 16, 1, length}, type);
        std::vector<int> decode_tail{length - 25, 1, 1, 1, 1, 1, 1, 5, 1, 1};
        decode_tail.resize(100, 1);
        std::vector<float> want = run_chunks(shape, 1, {length});
        expect_same_bits(want, run_chunks(shape, 3, decode_tail), "three threads");
        expect_same_bits(want, run_chunks(shape, 7, decode_tail), "seven threads");
      }
    }
  }
}

TEST(CpuAttention, WindowHidesWhatLiesBehindIt) {
  for (int window : {1, 64, 100, 333}) {
    for (int block : {8, 16}) {
      SCOPED_TRACE(testing::Message() << "window " << window << " block " << block);
      KvType type = window % 2 ? KvType(DType::i8, 32) : KvType(DType::f16);
      CacheShape shape = with_type({2, 1, 32, window, DType::f16, block, 1, 700}, type);
      std::vector<float> want = run_chunks(shape, 1, {700});
      Replay run(shape, 2);
      run.step({{0, 0, 50}});
      run.step({{0, 50, 550}});
      for (int pos : {0, 60, 330, 590}) run.expect_like_ref(0, pos, 10);
      for (int pos = 600; pos < 700; ++pos) {
        run.cache().drop_before(0, std::max(0, pos - window + 1));  // NaN from here on
        run.step({{0, pos, 1}});
      }
      expect_same_bits(want, run.result(), "after dropping blocks");
    }
  }
}

// Scores of up to about 4 against a cap of 1.5: the cap bites, in both ways of reading a tile, with
// a window and across spans.
TEST(CpuAttention, SoftcapIsWhatTheOracleSaysWhateverTheChunks) {
  TestSlice slice;
  for (int dim : {72, 256}) {
    for (int window : {0, 100}) {
      if (!slice.take()) continue;
      SCOPED_TRACE(testing::Message() << "dim " << dim << " window " << window);
      CacheShape shape{4, 2, dim, window, DType::f16, 16, 1, 1100};
      shape.softcap = 1.5F;
      Replay run(shape, 2);
      run.step({{0, 0, 1090}});
      for (int pos = 1090; pos < 1100; ++pos) run.step({{0, pos, 1}});
      for (int pos : {0, 60, 700, 1090}) run.expect_like_ref(0, pos, 10);
      expect_same_bits(run.result(), run_chunks(shape, 1, {1100}), "whole");
      expect_same_bits(run.result(), run_chunks(shape, 3, {301, 1, 2, 400, 1}), "chunks");
      CacheShape plain = shape;
      plain.softcap = 0;
      EXPECT_NE(run.result(), run_chunks(plain, 1, {1100})) << "the cap does nothing";
    }
  }
}

TEST(CpuAttention, BitsDoNotDependOnTheBatch) {
  CacheShape alone{3, 1, 32, 0, DType::f16, 16, 1, 1300};
  std::vector<float> want = run_chunks(alone, 1, {1300});
  CacheShape shape = alone;
  shape.num_slots = 4;
  Replay run(shape, 3);
  run.step({{0, 0, 1250}, {2, 0, 3}, {1, 0, 1200}, {3, 0, 77}});
  for (int i = 0; i < 40; ++i) {
    run.step({{3, 77 + i, 1}, {0, 1250 + i, 1}, {2, 3 + 5 * i, 5}, {1, 1200 + 2 * i, 2}});
  }
  run.step({{0, 1290, 10}});
  std::vector<float> got(run.row(0, 0), run.row(0, 0) + want.size());
  expect_same_bits(want, got, "slot 0 among others");
}

// Enough spans for every thread: a decoding row's task takes several kv heads, here all or 4 and 3.
TEST(CpuAttention, BitsDoNotDependOnHeadsTakenTogether) {
  TestSlice slice;
  for (KvType type : {KvType(DType::f16), KvType(DType::i8, 8), KvType(DType::i8, 32)}) {
    for (auto [heads, kv_heads, window, length] :
         {std::tuple{6, 2, 0, 2070}, {9, 3, 1500, 2070}, {112, 7, 0, 1130}}) {
      if (!slice.take()) continue;
      SCOPED_TRACE(testing::Message() << heads << " heads, window " << window << ", type "
                                      << static_cast<int>(type.type) << ":" << type.group);
      CacheShape shape = with_type({heads, kv_heads, 32, window, DType::f16, 16, 1, length}, type);
      constexpr int kSteps = 30;
      const int begin = length - kSteps;
      Replay alone(shape, 2);
      alone.fill({{0, 0, begin}});
      alone.step({{0, begin, kSteps}});
      shape.num_slots = 4;
      Replay run(shape, 2);
      run.fill({{0, 0, begin}, {1, 0, 1100}, {2, 0, begin - 10}, {3, 0, begin - 40}});
      for (int i = 0; i < kSteps; ++i)
        run.step(
            {{1, 1100 + i, 1}, {0, begin + i, 1}, {2, begin - 10 + i, 1}, {3, begin - 40 + i, 1}});
      const int64_t num = kSteps * shape.out_cols();
      expect_same_bits({alone.row(0, begin), alone.row(0, begin) + num},
                       {run.row(0, begin), run.row(0, begin) + num}, "slot 0 among others");
    }
  }
}

// --attention by-head: the same bits, also of long contexts that are else split between threads.
TEST(CpuAttention, ByHeadGivesTheSameBits) {
  for (KvType type : {KvType(DType::f16), KvType(DType::i8, 8)}) {
    for (auto [heads, kv_heads, window] : {std::tuple{6, 2, 0}, {4, 1, 700}}) {
      CacheShape shape = with_type({heads, kv_heads, 16, window, DType::f16, 16, 1, 1200}, type);
      const std::vector<int> chunks = {1150, 1, 1, 1, 1, 3};
      expect_same_bits(run_chunks(shape, 2, chunks),
                       run_chunks(shape, 2, chunks, AttentionVia::by_head), "by head");
    }
  }
}

// --attention naive: the same but for rounding, with windows, caps and every type of cache.
TEST(CpuAttention, NaiveIsWhatTheOracleSays) {
  for (KvType type : kTypes) {
    for (auto [window, softcap] : {std::pair{0, 0.0F}, {60, 1.5F}}) {
      SCOPED_TRACE(testing::Message() << "type " << static_cast<int>(type.type) << ":" << type.group
                                      << " window " << window);
      CacheShape shape = with_type({6, 2, 64, window, DType::f16, 16, 1, 150}, type);
      shape.softcap = softcap;
      Replay run(shape, 2, AttentionVia::naive);
      for (Part p : {Part{0, 0, 1}, {0, 1, 30}, {0, 31, 1}, {0, 32, 117}, {0, 149, 1}})
        run.step({p});
      for (int pos : {0, 28, 60, 124, 144}) run.expect_like_ref(0, pos, 6);
    }
  }
}

TEST(CpuAttention, FillsTheQuantisedForm) {
  for (auto [dim, via] : {std::pair{64, AttentionVia::tiled},
                          {72, AttentionVia::tiled},  // 72 * 3: a head group is no whole blocks
                          {64, AttentionVia::by_head},
                          {72, AttentionVia::by_head},
                          {64, AttentionVia::naive}}) {
    CacheShape shape{12, 4, dim, 0, DType::f16, 16, 2, 40};
    PagedCache cache(shape);
    auto cpu = make_cpu_backend({.threads = 2, .pin = false, .attention = via});
    PagedBatch batch(cache, {{0, 0, 40}, {1, 0, 33}});
    Matrix qkv = Matrix::random(73, shape.qkv_cols(), 5), f(73, shape.out_cols());
    QkvSpec spec;
    spec.attention = shape.attention();
    cpu->finish_qkv(qkv, spec, batch.view, cache.layer());
    Tensor q = Tensor(qkv).columns(0, shape.out_cols());
    cpu->attention(f.act(), q, spec.attention, batch.view, cache.layer());
    int64_t cols = shape.out_cols();
    std::vector<int8_t> codes(static_cast<size_t>(73 * cols), 99);
    std::vector<float> scale(codes.size() / 32, NAN);
    std::vector<int32_t> sum(codes.size() / 32, -1);
    Act only_q;
    only_q.q = {codes.data(), scale.data(), sum.data(), 73, cols};
    cpu->attention(only_q, q, spec.attention, batch.view, cache.layer());
    for (size_t i = 0; i < codes.size(); ++i) {
      int64_t r = static_cast<int64_t>(i) / cols, c = static_cast<int64_t>(i) % cols;
      ASSERT_NEAR(f.row(r)[c], scale[i / 32] * static_cast<float>(codes[i]),
                  scale[i / 32] * 0.501F);
    }
    // By whole rows, alone and beside the other: one scale for all heads.
    for (bool both : {false, true}) {
      std::vector<int8_t> row_codes(codes.size(), 99);
      std::vector<float> row_scale(73, NAN);
      std::vector<int32_t> row_sum(73, -1);
      Act act;
      if (both) act.q = only_q.q;
      act.r = {row_codes.data(), row_scale.data(), row_sum.data(), 73, cols};
      cpu->attention(act, q, spec.attention, batch.view, cache.layer());
      for (int64_t r = 0; r < 73; ++r) {
        std::vector<int8_t> want(static_cast<size_t>(cols));
        float want_scale;
        int32_t want_sum;
        quantize_whole_row(f.row(r), cols, want.data(), &want_scale, &want_sum);
        ASSERT_EQ(std::memcmp(want.data(), row_codes.data() + r * cols, want.size()), 0);
        ASSERT_EQ(row_scale[static_cast<size_t>(r)], want_scale);
        ASSERT_EQ(row_sum[static_cast<size_t>(r)], want_sum);
      }
    }
  }
}

}  // namespace
}  // namespace sluice
