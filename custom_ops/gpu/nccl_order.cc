#include "gpu/nccl_order.h"

#include <algorithm>

namespace tfddl {

void NcclOrder::Append(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  places_[collective] = {{0, "", ++appended_}, true};
}

int64_t NcclOrder::Propose(const void* collective, const std::string& set, int tag) {
  std::lock_guard<std::mutex> lock(mutex_);
  places_[collective] = {{++now_, set, tag}, false};
  return now_;
}

void NcclOrder::Settle(const void* collective, int64_t time) {
  std::lock_guard<std::mutex> lock(mutex_);
  now_ = std::max(now_, time);
  Place& place = places_.at(collective);
  std::get<0>(place.key) = time;
  place.settled = true;
}

bool NcclOrder::IsNext(const void* collective) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Place& mine = places_.at(collective);
  return mine.settled && std::all_of(places_.begin(), places_.end(), [&](const auto& other) {
           return other.first == collective || mine.key < other.second.key;
         });
}

void NcclOrder::Leave(const void* collective) {
  std::lock_guard<std::mutex> lock(mutex_);
  places_.erase(collective);
}

}  // namespace tfddl
