#include "core/engine/completion.h"

#include <utility>

namespace tfddl {

CompletionThread::CompletionThread() : thread_([this] { Loop(); }) {}

void CompletionThread::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CompletionThread::Post(std::function<void()> function) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    queue_.push_back(std::move(function));
  }
  wake_.notify_one();
}

void CompletionThread::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    auto function = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    function();
    function = nullptr;  // releases captured objects outside the lock
    lock.lock();
  }
}

}  // namespace tfddl
