#include "core/engine/engine_control.h"

#include <utility>

namespace tfddl {

bool EngineControl::Push(EngineCommand&& command) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return false;
    commands_.push_back(std::move(command));
    if (polled_) return true;
  }
  wake_.notify_one();
  return true;
}

void EngineControl::BeginPoll() {
  std::lock_guard<std::mutex> lock(mutex_);
  polled_ = true;
}

void EngineControl::EndPoll(Wake wake) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    polled_ = false;
    const bool needed = wake == Wake::kNow || (wake == Wake::kSoon && !timed_);
    if (!needed && commands_.empty()) return;
    woken_ = true;
  }
  wake_.notify_one();
}

void EngineControl::Fail(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;  // the first reason is the cause, later ones are its consequences
    failure_ = reason;
  }
  wake_.notify_one();
  closed_or_failed_.notify_all();
}

std::optional<std::string> EngineControl::failure() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

bool EngineControl::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

bool EngineControl::WaitUntilClosed(double limit_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  return closed_or_failed_.wait_for(lock, std::chrono::duration<double>(limit_s),
                                    [this] { return closed_ || failure_; });
}

void EngineControl::Stop(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_ && !failure_) failure_ = reason;
    stop_ = true;
  }
  wake_.notify_one();
  closed_or_failed_.notify_all();
}

std::deque<EngineCommand> EngineControl::TakeCommands() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(commands_, {});
}

void EngineControl::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!std::exchange(closed_, true)) closed_or_failed_.notify_all();
}

void EngineControl::Wait(bool failed, std::optional<std::chrono::microseconds> limit) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto woken = [&] {
    return stop_ || woken_ || (!commands_.empty() && !polled_) || failure_.has_value() != failed;
  };
  if (limit) {
    timed_ = true;
    wake_.wait_for(lock, *limit, woken);
    timed_ = false;
  } else {
    wake_.wait(lock, woken);
  }
  woken_ = false;
}

bool EngineControl::Ends(bool failed) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_ && commands_.empty() && (closed_ || failed)) ended_ = true;
  return ended_;
}

}  // namespace tfddl
