// MapUpTo() enters the pages of a peer's memory before they are read.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/check.h"
#include "transport/shm_segment.h"

namespace tfddl {
namespace {

constexpr size_t kPage = 4096, kPages = 512;

// The number of pages that this process can touch without a fault.
size_t Present(const char* memory) {
  std::vector<uint64_t> entries(kPages);
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const size_t bytes = kPages * sizeof(uint64_t);
  const size_t at = reinterpret_cast<uintptr_t>(memory) / kPage * sizeof(uint64_t);
  CHECK(pread(map, entries.data(), bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes));
  close(map);
  return static_cast<size_t>(
      std::count_if(entries.begin(), entries.end(), [](uint64_t entry) { return entry >> 63; }));
}

// Whether the system can enter pages: Linux before 5.14 refuses the advice, and qemu-user ignores it.
bool CanEnterPages() {
  constexpr int kPopulateRead = 22;
  void* const data = mmap(nullptr, kPages * kPage, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(data != MAP_FAILED);
  char* const memory = static_cast<char*>(data);
  const bool can = madvise(memory, kPages * kPage, kPopulateRead) == 0 && Present(memory) == kPages;
  munmap(memory, kPages * kPage);
  return can;
}

// The memory has a second mapping, as if a peer had it too.
void TestMapUpTo(bool can_enter) {
  const auto twice = [](const std::string& mine) { return std::vector<std::string>{mine, mine}; };
  const auto arenas = ShareArenas(0, kPages * kPage, twice, {});
  const auto block = arenas.mine->Allocate(kPages * kPage);
  char* const there = arenas.all[1].get() + arenas.mine->Find(block.get());
  CHECK(there != block.get());
  CHECK(MapUpTo(there, 0, 2 * kPage + 1) == 3 * kPage);
  CHECK(MapUpTo(there, 3 * kPage, kPage) == 3 * kPage);
  CHECK(!can_enter || Present(there) < kPages / 2);  // the system may map neighbours as well
  CHECK(MapUpTo(there, 3 * kPage, kPages * kPage) == kPages * kPage);
  CHECK(!can_enter || Present(there) == kPages);
  there[kPages * kPage - 1] = 1;
  CHECK(block.get()[kPages * kPage - 1] == 1);
}

}  // namespace
}  // namespace tfddl

int main() {
  const bool can_enter = tfddl::CanEnterPages();
  tfddl::TestMapUpTo(can_enter);
  if (!can_enter) return Skip("the system cannot enter pages ahead (MADV_POPULATE_READ)");
  std::puts("map up to: ok");
  return 0;
}
