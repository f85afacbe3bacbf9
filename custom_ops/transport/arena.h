// Memory of one process that its peers on the host have mapped. Collectives allocate their results in it, so
// that peers can write to them directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace tfddl {

// Belongs to one job and lives as long as any of its blocks. Allocates at the lowest free offset first,
// because pages there are already in use.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr uint64_t kNowhere = UINT64_MAX;

  // The alignment of blocks in bytes. TensorFlow's kernels expect it of their tensors.
  static constexpr size_t kLine = 64;

  // Backs the range from `begin` up to `end` with memory. False if no memory is left.
  using Commit = std::function<bool(size_t begin, size_t end)>;

  // Calls `commit` for consecutive ranges, once for each.
  Arena(std::shared_ptr<char> memory, size_t bytes, Commit commit);

  // An aligned block, or null if less than `leave` free bytes would remain.
  std::shared_ptr<char> Allocate(size_t bytes, size_t leave = 0);

  // The offset of `data`, by which peers find it; kNowhere if `data` is not in the arena.
  uint64_t Find(const void* data) const;

  size_t bytes() const { return bytes_; }

 private:
  bool CommitUpTo(size_t end);
  void Free(size_t begin, size_t bytes);

  const std::shared_ptr<char> memory_;
  const size_t bytes_;
  const Commit commit_;
  std::mutex mutex_;               // everything below
  std::map<size_t, size_t> free_;  // offset and length of each free range; neighbours are merged
  size_t free_bytes_;
  size_t committed_ = 0;
};

}  // namespace tfddl
