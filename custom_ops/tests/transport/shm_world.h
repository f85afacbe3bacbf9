// Members of the shared-memory transport as threads of one process, over ordinary memory. The sanitizers see
// every access; with several mappings of the same pages they would not.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "transport/shm.h"

namespace tfddl {

// Small, so that rings and slots are often full.
inline ShmGeometry SmallGeometry() { return {size_t{16} << 10, size_t{8} << 10, 4}; }

constexpr size_t kLong = 30000;  // bytes of a message that takes several slots
constexpr size_t kPiece = 6000;  // bytes of a message that fits a slot, but not the ring

inline std::vector<char> Pattern(size_t bytes, unsigned seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 31 + seed * 17 + i / 251);
  return data;
}

class ShmWorld {
 public:
  // `arena_bytes`: the size of each arena; 0: none.
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
