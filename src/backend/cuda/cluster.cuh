// Blocks of a cluster: barriers, and reading each other's shared memory.
#pragma once

#include <cstdint>

namespace sluice::cuda {

__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// `address` of this block's shared memory, in block `rank` of the cluster.
__device__ inline uint32_t in_block(uint32_t address, int rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
// Arrives at a barrier of the cluster (in_block()) without making this thread's writes visible to
// the other block: it tells that something was read. (An arrival that releases to the cluster is
// compiled to a fence for the whole GPU.)
__device__ inline void barrier_arrive_in_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline int block_in_cluster() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline float load_remote(uint32_t address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ inline float4 load_remote4(uint32_t address) {
  float4 x;
  asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ inline int cluster_blocks() {
  int n;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
  return n;
}

}  // namespace sluice::cuda
