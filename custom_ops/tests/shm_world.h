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
  explicit ShmWorld(int size, const ShmGeometry& geometry = SmallGeometry()) : geometry_(geometry) {
    for (int rank = 0; rank < size; ++rank) {
      constexpr size_t kPage = 4096;
      const size_t bytes = (ShmSegmentBytes(geometry, size) + kPage) / kPage * kPage;
      char* memory = static_cast<char*>(std::aligned_alloc(kPage, bytes));
      if (!memory) throw std::bad_alloc();
      std::memset(memory, 0, bytes);
      segments_.emplace_back(memory, std::free);
    }
  }
  std::unique_ptr<Transport> Join(int rank) const { return MakeShmTransport(rank, segments_, geometry_); }

 private:
  ShmGeometry geometry_;
  std::vector<ShmSegment> segments_;
};

}  // namespace tfddl
