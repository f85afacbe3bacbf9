// Memory of one process that its peers on the host reach, given out in blocks: for results that peers write
// where they belong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace tfddl {

// Belongs to one job and lives as long as any of its blocks. The lowest place that is free is given out
// first: its pages have been touched before.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr uint64_t kNowhere = UINT64_MAX;

  // Bytes to which blocks are aligned, as TensorFlow aligns its tensors: its kernels rely on it.
  static constexpr size_t kLine = 64;

  // Puts memory behind the bytes from `begin` up to `end`. False when there is none left.
  using Commit = std::function<bool(size_t begin, size_t end)>;

  // `commit` is asked for one range after the other, each once.
  Arena(std::shared_ptr<char> memory, size_t bytes, Commit commit);

  // A block on lines of its own, of which `leave` free bytes remain. Null when there is no room.
  std::shared_ptr<char> Allocate(size_t bytes, size_t leave = 0);

  // How far behind the beginning `data` lies, which is what peers know it by; or kNowhere.
  uint64_t Find(const void* data) const;

  size_t bytes() const { return bytes_; }

 private:
  bool CommitUpTo(size_t end);
  void Free(size_t begin, size_t bytes);

  const std::shared_ptr<char> memory_;
  const size_t bytes_;
  const Commit commit_;
  std::mutex mutex_;               // everything below
  std::map<size_t, size_t> free_;  // where a free range begins, and its bytes; no two touch
  size_t free_bytes_;
  size_t committed_ = 0;
};

}  // namespace tfddl
