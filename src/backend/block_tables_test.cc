// Layers may have tables of their own (KvLayer::table_at), on every backend.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/paged_batch.h"
#include "backend/ref/ref_backend.h"

namespace sluice {
namespace {

TEST(BlockTables, ALayerReadsAndWritesThroughItsOwn) {
  std::unique_ptr<Backend> backends[] = {make_cpu_backend({.threads = 2, .pin = false}),
                                         make_ref_backend()};
  for (auto& be : backends) {
    SCOPED_TRACE(be->describe());
    be->attach();
    CacheShape shape;
    shape.num_slots = 2;
    shape.max_positions = 64;
    // The second table, as the second slot's and as another layer's of the first.
    PagedCache a(shape), b(shape);
    PagedBatch of_slot(a, {{1, 0, 40}}), of_layer(b, {{0, 0, 40}});
    KvLayer layer_a = a.layer(), layer_b = b.layer();
    layer_b.table_at = b.table_stride();
    Matrix qkv_a = Matrix::random(40, shape.qkv_cols(), 3), qkv_b = qkv_a;
    Matrix out_a(40, shape.out_cols()), out_b(40, shape.out_cols());
    QkvSpec spec;
    spec.attention = shape.attention();
    auto run = [&](Matrix& qkv, Matrix& out, const BatchView& batch, KvLayer kv) {
      be->finish_qkv(qkv, spec, batch, kv);
      Tensor q = Tensor(qkv).columns(0, shape.out_cols());
      be->attention(out.act(), q, spec.attention, batch, kv);
    };
    run(qkv_a, out_a, of_slot.view, layer_a);
    run(qkv_b, out_b, of_layer.view, layer_b);
    EXPECT_EQ(a.k(), b.k());
    EXPECT_EQ(a.v(), b.v());
    EXPECT_EQ(out_a.data(), out_b.data());
  }
}

}  // namespace
}  // namespace sluice
