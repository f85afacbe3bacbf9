// The layout of the segments: the full size for few members of a host, a bounded sum for many.
#include <cstdio>

#include "tests/check.h"
#include "transport/shm.h"

namespace tfddl {
namespace {

size_t HostBytes(int size) {
  return ShmSegmentBytes(ShmGeometry::For(size), size) * static_cast<size_t>(size);
}

void TestFewMembers() {
  for (int size = 1; size <= 31; ++size) {
    const ShmGeometry geometry = ShmGeometry::For(size);
    CHECK(geometry.ring_bytes == size_t{64} << 10);
    CHECK(geometry.slot_bytes == size_t{64} << 10);
    CHECK(geometry.slots == 16);
  }
  CHECK(ShmGeometry::For(32).slots == 8);
}

void TestSumIsBounded() {
  for (int size = 1; size <= 142; ++size) CHECK(HostBytes(size) <= kShmHostBytes);
  CHECK(HostBytes(64) == size_t{64} * 63 * (148 << 10));
  CHECK(HostBytes(512) == size_t{512} * 511 * (52 << 10));
}

// Another member never makes the channels larger, and the transport can always work with them.
void TestManyMembers() {
  size_t before = ShmSegmentBytes(ShmGeometry::For(2), 2);
  for (int size = 3; size <= 600; ++size) {
    const ShmGeometry geometry = ShmGeometry::For(size);
    const size_t channel = ShmSegmentBytes(geometry, 2);
    CHECK(channel <= before);
    before = channel;
    CHECK(geometry.ring_bytes >= size_t{16} << 10);  // shm_channel.h
    CHECK(geometry.slot_bytes > size_t{4} << 10);    // longer than a message that travels in the ring
    CHECK(geometry.slots >= 4);                      // one eager, two views, one that is always free
  }
}

}  // namespace
}  // namespace tfddl

int main() {
  tfddl::TestFewMembers();
  tfddl::TestSumIsBounded();
  tfddl::TestManyMembers();
  std::puts("geometry: ok");
  return 0;
}
