// Busy polling: a thread that submits a small request runs the engine's rounds itself for a short time. Then
// neither the engine's thread nor the completion thread has to wake up, each of which takes 20 us and more.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {
namespace {

constexpr size_t kPollBytes = size_t{64} << 10;
// A small collective takes about 10 us once all ranks have come.
constexpr std::chrono::microseconds kPollFor{60};
constexpr int kMostUnpolled = 1 << 10;

thread_local bool answering = false;  // a request for which this thread has polled

bool IsSmall(const Request& request) {
  size_t bytes = 0;
  for (const Buffer& buffer : request.buffers) {
    bytes += static_cast<size_t>(buffer.count) * SizeOf(request.dtype);
  }
  return bytes <= kPollBytes;
}

// Allgather and alltoall need the completion thread for their outputs.
bool NeedsNoOtherThread(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kBroadcast || kind == Kind::kReducescatter ||
         kind == Kind::kBarrier;
}

}  // namespace

// Whether the thread that submits `request` polls. It has driving_ then. An answer may submit the next
// request on the same stack, so that only the first of them polls.
bool Engine::Polls(const Request& request) {
  if (!busy_poll_ || answering || request.buckets > 1) return false;
  if (!NeedsNoOtherThread(request.kind) || !IsSmall(request)) return false;
  if (unpolled_.load(std::memory_order_relaxed) > 0) {
    unpolled_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  if (!driving_.try_lock()) return false;
  if (!stopped_) return true;
  driving_.unlock();
  return false;
}

// Runs rounds until the request polled_ has ended, at most for kPollFor, and answers it. Gives driving_ back.
void Engine::PollUntilEnd() {
  const auto until = std::chrono::steady_clock::now() + kPollFor;
  Round round{};
  do {
    round = RunRound();
  } while (!polled_end_ && !round.failed && std::chrono::steady_clock::now() < until);
  polled_ = 0;
  auto end = std::exchange(polled_end_, std::nullopt);
  driving_.unlock();
  if (!round.idle || round.failed) control_.Wake();
  // If the other ranks come late, polling costs more than it gains: it is tried more and more seldom.
  const int pause = pause_.load(std::memory_order_relaxed);
  if (!end) unpolled_.store(pause, std::memory_order_relaxed);
  pause_.store(end ? 0 : std::min(2 * pause + 1, kMostUnpolled), std::memory_order_relaxed);
  if (!end) return;
  end->first.allocate = nullptr;  // as in Answer()
  end->first.keep_alive = nullptr;
  answering = true;
  end->first.done(end->second);
  answering = false;
}

}  // namespace tfddl
