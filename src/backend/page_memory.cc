#include "backend/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "backend/backend.h"

namespace sluice {

namespace {

// The system puts a zeroed page behind an address when it is first written; unmap() gives it back.
class HostPages final : public PageMemory {
 public:
  void* reserve(size_t bytes) override {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    // A huge page would reach into addresses of other slots.
    madvise(p, bytes, MADV_NOHUGEPAGE);
    spaces_.emplace_back(p, bytes, [](void* at, size_t n) { munmap(at, n); });
    return p;
  }
  void map(void*, size_t) override {}
  void unmap(void* at, size_t num) override { madvise(at, num * host_page_bytes(), MADV_DONTNEED); }
  void map_padding(void*) override {}  // every address may be written

 private:
  std::vector<Buffer> spaces_;
};

}  // namespace

size_t host_page_bytes() {
  static const auto kBytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return kBytes;
}

std::unique_ptr<PageMemory> host_page_memory() { return std::make_unique<HostPages>(); }

}  // namespace sluice
