#include "transport/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tfddl {
namespace {

constexpr size_t kCommitBytes = size_t{2} << 20;  // a huge page

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Arena::Arena(std::shared_ptr<char> memory, size_t bytes, Commit commit)
    : memory_(std::move(memory)), bytes_(bytes), commit_(std::move(commit)), free_bytes_(bytes) {
  if (bytes > 0) free_.emplace(0, bytes);
}

std::shared_ptr<char> Arena::Allocate(size_t bytes, size_t leave) {
  if (bytes == 0 || bytes > bytes_) return nullptr;
  const size_t need = RoundUp(bytes, kLine);
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_bytes_ < need || free_bytes_ - need < leave) return nullptr;
  const auto fits =
      std::find_if(free_.begin(), free_.end(), [&](auto& range) { return range.second >= need; });
  if (fits == free_.end()) return nullptr;
  const auto [begin, length] = *fits;
  if (!CommitUpTo(begin + need)) return nullptr;
  free_.erase(fits);
  if (length > need) free_.emplace(begin + need, length - need);
  free_bytes_ -= need;
  return std::shared_ptr<char>(memory_.get() + begin, [arena = shared_from_this(), begin = begin,
                                                       need](char*) { arena->Free(begin, need); });
}

uint64_t Arena::Find(const void* data) const {
  const auto address = reinterpret_cast<uintptr_t>(data), begin = reinterpret_cast<uintptr_t>(memory_.get());
  return address >= begin && address < begin + bytes_ ? address - begin : kNowhere;
}

bool Arena::CommitUpTo(size_t end) {
  if (end <= committed_) return true;
  end = std::min(RoundUp(end, kCommitBytes), bytes_);
  if (!commit_(committed_, end)) return false;
  committed_ = end;
  return true;
}

void Arena::Free(size_t begin, size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_bytes_ += bytes;
  auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
}

}  // namespace tfddl
