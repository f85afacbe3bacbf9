#include "gpu/nccl_order.h"

#include <algorithm>

namespace tfddl {

void NcclOrder::Append(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[collective] = {{0, "", ++appended_}, true};
}

int64_t NcclOrder::Propose(const void* collective, const std::string& set, int tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_[collective] = {{++now_, set, tag}, false};
  return now_;
}

void NcclOrder::Settle(const void* collective, int64_t time) {
  std::lock_guard<std::mutex> lock(mutex_);
  now_ = std::max(now_, time);
  Entry& entry = entries_.at(collective);
  std::get<0>(entry.key) = time;
  entry.settled = true;
}

bool NcclOrder::IsNext(const void* collective) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Entry& mine = entries_.at(collective);
  return mine.settled && std::all_of(entries_.begin(), entries_.end(), [&](const auto& other) {
           return other.first == collective || mine.key < other.second.key;
         });
}

void NcclOrder::Leave(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  entries_.erase(collective);
}

}  // namespace tfddl
