// Busy polling: a thread that submits a small request runs the engine's rounds itself for a short time. Then
// neither the engine's thread nor the completion thread has to wake up.
#include <cfenv>
#include <chrono>
#include <thread>
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {
namespace {

constexpr std::chrono::microseconds kRound{10};  // most of them are shorter

thread_local bool answering = false;  // a request for which this thread has polled

// TensorFlow's threads flush denormal numbers to zero, and a reduction has to give the same bits on all
// threads.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&before_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace

// Returns whether the calling thread runs the rounds until `request` has ended, and has driving_. An answer
// may submit the next request on the same stack, so that only the first of them polls. With other requests
// under way that somebody waits for, the engine's thread is awake already.
bool Engine::BeginPoll(Request* request) {
  if (answering || !busy_poll_.Suits(*request) || !TakeTurn(*request)) return false;
  if (stopped_ || !pending_.empty() || !AllLaunched()) {
    driving_.unlock();
    return false;
  }
  busy_poll_.Begun();
  polled_ = request->number;
  control_.BeginPoll();
  return true;
}

// Takes driving_ if it is free. A round that looks for the end of launched work is short.
bool Engine::TakeTurn(const Request& request) {
  const auto begin = std::chrono::steady_clock::now();
  while (!driving_.try_lock()) {
    if (!request.launched || std::chrono::steady_clock::now() - begin > kRound) return false;
  }
  return true;
}

// Runs rounds until `ended`, at most for the time of BusyPoll. Returns the last one.
Engine::Round Engine::PollRounds(const std::function<bool()>& ended) {
  const DefaultFloatingPoint guard;
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const Round round = RunRound();
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (ended() || round.failed || waited > BusyPoll::kLimit) return round;
    if (waited > BusyPoll::kYieldAfter) std::this_thread::yield();
  }
}

// Polls for the request polled_, and answers it if it has ended.
void Engine::PollUntilEnd() {
  const Round last = PollRounds([this] { return polled_ == 0; });
  auto result = std::exchange(polled_result_, std::nullopt);
  EndPoll(polled_ == 0, WakeAfter(last));
  if (!result) return;
  ++recorder_.counters.polled;
  answering = true;
  Deliver(&*result, Status());
  answering = false;
}

void Engine::Help(const std::function<bool()>& ended) {
  if (!busy_poll_.on()) return;
  const auto late = std::chrono::steady_clock::now() + BusyPoll::kLimit;
  while (!ended() && std::chrono::steady_clock::now() < late) {
    if (!driving_.try_lock()) {
      std::this_thread::yield();
      continue;
    }
    const std::lock_guard<std::mutex> lock(driving_, std::adopt_lock);
    if (stopped_) return;
    control_.BeginPoll();
    const Round last = PollRounds(ended);
    control_.EndPoll(WakeAfter(last));
    if (last.failed) return;
  }
}

// After rounds on another thread.
Wake Engine::WakeAfter(const Round& round) {
  if (!round.quiet) return Wake::kNow;
  return round.on_gpu ? Wake::kSoon : Wake::kNo;
}

void Engine::EndPoll(bool in_time, Wake wake) {
  polled_ = 0;
  busy_poll_.Ended(in_time);
  control_.EndPoll(wake);
  driving_.unlock();
}

}  // namespace tfddl
