// The thread on which callbacks run. TensorFlow's continuations can take long, and the engine's thread must
// not wait for them.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tfddl {

class CompletionThread {
 public:
  CompletionThread();
  ~CompletionThread() { Stop(); }

  // Runs the posted functions, then ends the thread. Call it from another thread; a second call does nothing.
  void Stop();
  void Post(std::function<void()> function);

 private:
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tfddl
