// Addresses with pages mapped on demand, by the driver's own functions: the program does not link
// the driver. All pages are created at the start, so that the pool is this process's from then on;
// mapping one waits for nothing.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <utility>
#include <vector>

#include "backend/cuda/check.cuh"
#include "backend/cuda/cuda_backend.cuh"

namespace sluice::cuda {

namespace {

struct PageDriver {
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;

  PageDriver() {
    find("cuMemAddressReserve", reserve);
    find("cuMemAddressFree", free);
    find("cuMemCreate", create);
    find("cuMemRelease", release);
    find("cuMemMap", map);
    find("cuMemUnmap", unmap);
    find("cuMemSetAccess", set_access);
    find("cuMemGetAllocationGranularity", granularity);
  }

 private:
  template <typename F>
  static void find(const char* symbol, F& to) {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion(symbol, &f, 10020, cudaEnableDefault, &found), symbol);
    if (found != cudaDriverEntryPointSuccess)
      throw std::runtime_error(std::string("CUDA: the driver has no ") + symbol +
                               ": --kv-allocator virtual needs it, use paged");
    to = reinterpret_cast<F>(f);
  }
};

void check_driver(CUresult r, const char* what) {
  if (r == CUDA_SUCCESS) return;
  if (r == CUDA_ERROR_OUT_OF_MEMORY) throw std::bad_alloc();
  throw std::runtime_error(std::string("CUDA: ") + what + ": driver error " + std::to_string(r));
}

class DevicePages final : public PageMemory {
 public:
  // New pages are cleared in the stream that `stream` names then.
  DevicePages(int device, size_t num_pages, const cudaStream_t& stream) : stream_(stream) {
    prop_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access_.location = prop_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    size_t least = 0;
    check_driver(driver_.granularity(&least, &prop_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "size of pages");
    if (least == 0 || kDevicePage % least != 0)
      throw std::runtime_error(
          "CUDA: this device's pages are larger than 2 MiB: use --kv-allocator paged");
    free_.reserve(num_pages);
    try {
      while (free_.size() < num_pages) free_.push_back(create());
      padding_ = create();
    } catch (...) {
      for (CUmemGenericAllocationHandle h : free_) driver_.release(h);
      throw;
    }
  }
  ~DevicePages() override {
    for (Space& s : spaces_) {
      for (size_t k = 0; k < s.pages.size(); ++k) {
        if (s.pages[k] == 0) continue;
        driver_.unmap(s.at + k * kDevicePage, kDevicePage);
        if (s.pages[k] != padding_) driver_.release(s.pages[k]);
      }
      driver_.free(s.at, s.pages.size() * kDevicePage);
    }
    for (CUmemGenericAllocationHandle h : free_) driver_.release(h);
    driver_.release(padding_);
  }

  void* reserve(size_t bytes) override {
    Space s;
    s.pages.resize(bytes / kDevicePage);
    check_driver(driver_.reserve(&s.at, bytes, kDevicePage, 0, 0), "addresses of the KV cache");
    spaces_.push_back(std::move(s));
    return reinterpret_cast<void*>(spaces_.back().at);
  }
  void map(void* at, size_t num) override {
    auto [space, first] = find(at);
    // A call that failed half-way is repeated: what it has mapped stays.
    for (size_t k = first; k < first + num; ++k) {
      if (space->pages[k] != 0) continue;
      if (free_.empty()) throw std::bad_alloc();
      put(*space, k, free_.back());
      free_.pop_back();
    }
    allow(*space, first, num);
    check(cudaMemsetAsync(at, 0, num * kDevicePage, stream_), "pages of the KV cache");
  }
  void unmap(void* at, size_t num) override {
    auto [space, first] = find(at);
    for (size_t k = first; k < first + num; ++k) {
      if (space->pages[k] == 0) continue;
      check_driver(driver_.unmap(space->at + k * kDevicePage, kDevicePage), "unmapping");
      free_.push_back(std::exchange(space->pages[k], 0));
    }
  }
  void map_padding(void* at) override {
    auto [space, first] = find(at);
    put(*space, first, padding_);
    allow(*space, first, 1);
    check(cudaMemsetAsync(at, 0, kDevicePage, stream_), "pages of the KV cache");
  }

 private:
  struct Space {
    CUdeviceptr at = 0;
    std::vector<CUmemGenericAllocationHandle> pages;  // 0: not mapped
  };

  CUmemGenericAllocationHandle create() {
    CUmemGenericAllocationHandle h = 0;
    check_driver(driver_.create(&h, kDevicePage, &prop_, 0), "pages of the KV cache");
    return h;
  }
  std::pair<Space*, size_t> find(void* at) {
    auto address = reinterpret_cast<CUdeviceptr>(at);
    for (Space& s : spaces_) {
      if (address >= s.at && address < s.at + s.pages.size() * kDevicePage)
        return {&s, (address - s.at) / kDevicePage};
    }
    throw std::runtime_error("CUDA: an address that was not reserved for the KV cache");
  }
  void put(Space& s, size_t k, CUmemGenericAllocationHandle h) {
    check_driver(driver_.map(s.at + k * kDevicePage, kDevicePage, 0, h, 0), "mapping");
    s.pages[k] = h;
  }
  void allow(const Space& s, size_t first, size_t num) {
    check_driver(driver_.set_access(s.at + first * kDevicePage, num * kDevicePage, &access_, 1),
                 "access to mapped pages");
  }

  PageDriver driver_;
  const cudaStream_t& stream_;
  CUmemAllocationProp prop_{};
  CUmemAccessDesc access_{};
  std::vector<Space> spaces_;
  std::vector<CUmemGenericAllocationHandle> free_;
  CUmemGenericAllocationHandle padding_ = 0;
};

}  // namespace

std::unique_ptr<PageMemory> CudaBackend::page_memory(size_t num_pages) {
  return std::make_unique<DevicePages>(options_.index, num_pages, stream_);
}

}  // namespace sluice::cuda
