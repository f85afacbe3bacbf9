#include "core/engine/busy_poll.h"

#include <algorithm>

namespace tfddl {
namespace {

constexpr int64_t kMostBytes = int64_t{256} << 10;

// Allgather and alltoall need the completion thread for their outputs; a join waits for the end of other
// ranks' data.
bool NeedsNoOtherThread(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kReducescatter ||
         kind == Kind::kBarrier;
}

}  // namespace

// The buckets of a sequence leave while the backward pass goes on, which must not wait for them. A poll for a
// launch does not wait for the data.
bool BusyPoll::Suits(const Request& request) {
  if (!on_ || request.buckets > 1 || !NeedsNoOtherThread(request.kind)) return false;
  if (request.bytes() > kMostBytes && !request.launched) return false;
  if (polling_.load(std::memory_order_relaxed)) to_skip_.store(kMostSkipped, std::memory_order_relaxed);
  if (to_skip_.load(std::memory_order_relaxed) <= 0) return true;
  to_skip_.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

void BusyPoll::Ended(bool in_time) {
  polling_.store(false, std::memory_order_relaxed);
  const int vain = in_time ? 0 : vain_.load(std::memory_order_relaxed) + 1;
  vain_.store(vain, std::memory_order_relaxed);
  if (vain < kVainPolls) return;
  to_skip_.store(std::min(1 << std::min(vain - kVainPolls, 30), kMostSkipped), std::memory_order_relaxed);
}

}  // namespace tfddl
