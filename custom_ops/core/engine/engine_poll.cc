// Busy polling: a thread that submits a small request runs the engine's rounds itself for a short time. Then
// neither the engine's thread nor the completion thread has to wake up.
#include <cfenv>
#include <chrono>
#include <thread>
#include <utility>

#include "core/engine/engine.h"

namespace tfddl {
namespace {

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
// under way, the engine's thread is awake already.
bool Engine::BeginPoll(Request* request) {
  if (answering || !busy_poll_.Suits(*request) || !driving_.try_lock()) return false;
  if (stopped_ || !pending_.empty() || !running_.empty()) {
    driving_.unlock();
    return false;
  }
  busy_poll_.Begun();
  polled_ = request->number;
  if (request->launched) EndPollAtLaunch(request);
  control_.BeginPoll();
  return true;
}

// A compiled program does not wait for the GPU.
void Engine::EndPollAtLaunch(Request* request) {
  request->launched = [this, number = request->number,
                       launched = std::move(request->launched)](std::shared_ptr<DeviceEvent> end) {
    launched(std::move(end));
    if (polled_ == number) polled_ = 0;
  };
}

// Runs rounds until the request polled_ has ended, at most for the time of BusyPoll. Returns the last one.
Engine::Round Engine::PollRounds() {
  const DefaultFloatingPoint guard;
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const Round round = RunRound();
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (polled_ == 0 || round.failed || waited > BusyPoll::kLimit) return round;
    if (waited > BusyPoll::kYieldAfter) std::this_thread::yield();
  }
}

// Polls for the request polled_, and answers it if it has ended.
void Engine::PollUntilEnd() {
  const Round last = PollRounds();
  auto result = std::exchange(polled_result_, std::nullopt);
  EndPoll(polled_ == 0, !last.idle);
  if (!result) return;
  ++recorder_.counters.polled;
  answering = true;
  Deliver(&*result, Status());
  answering = false;
}

// `wake`: the engine's thread has something to do.
void Engine::EndPoll(bool in_time, bool wake) {
  polled_ = 0;
  busy_poll_.Ended(in_time);
  control_.EndPoll(wake);
  driving_.unlock();
}

}  // namespace tfddl
