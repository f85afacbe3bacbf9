// Members of the shared-memory transport that are threads of one process, over ordinary memory: the
// sanitizers see every access, which they would not through several mappings of the same pages.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "transport/shm.h"

namespace tfddl {

// So small that rings and slots run out all the time.
inline ShmGeometry SmallGeometry() { return {size_t{16} << 10, size_t{8} << 10, 4}; }

constexpr size_t kLong = 30000;  // bytes of a message that takes several of its slots
constexpr size_t kPiece = 6000;  // and of one that fits a slot, but not the ring

inline std::vector<char> Pattern(size_t bytes, unsigned seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + seed * 17 + i / 251);
  return data;
}

class ShmWorld {
 public:
  // Arenas of `arena_bytes` each; 0: none.
  explicit ShmWorld(int size, const ShmGeometry& geometry = SmallGeometry(), size_t arena_bytes = 0)
      : geometry_(geometry), arena_bytes_(arena_bytes) {
    for (int rank = 0; rank < size; ++rank) {
      segments_.push_back(Zeroed(ShmSegmentBytes(geometry, size)));
      if (arena_bytes > 0) arenas_.push_back(Zeroed(arena_bytes));
    }
  }
  std::unique_ptr<Transport> Join(int rank) const {
    ShmArenas arenas{nullptr, arenas_};
    if (arena_bytes_ > 0) {
      auto commit = [](size_t, size_t) { return true; };
      arenas.mine = std::make_shared<Arena>(arenas_[static_cast<size_t>(rank)], arena_bytes_, commit);
    }
    return MakeShmTransport(rank, segments_, geometry_, arenas);
  }

 private:
  static ShmSegment Zeroed(size_t bytes) {
    constexpr size_t kPage = 4096;
    bytes = (bytes + kPage) / kPage * kPage;
    char* memory = static_cast<char*>(std::aligned_alloc(kPage, bytes));
    if (!memory) throw std::bad_alloc();
    std::memset(memory, 0, bytes);
    return ShmSegment(memory, std::free);
  }

  ShmGeometry geometry_;
  size_t arena_bytes_;
  std::vector<ShmSegment> segments_, arenas_;
};

}  // namespace tfddl
