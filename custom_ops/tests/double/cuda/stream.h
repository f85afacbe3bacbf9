// A stream is a thread that runs work in order. The record of an event is a fence in that order.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace fake {

class Fence {
 public:
  void Set();
  void Wait();
  bool Done() const;
  std::chrono::steady_clock::time_point When() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::chrono::steady_clock::time_point when_;
};

struct Event {
  int device;
  bool timed;
  std::mutex mutex;
  std::shared_ptr<Fence> fence;  // of the last record; null: no record

  std::shared_ptr<Fence> Last() {
    std::lock_guard<std::mutex> lock(mutex);
    return fence;
  }
};

class Stream {
 public:
  // The thread lives until Close() and the end of all work, even if the stream object is kept.
  static std::shared_ptr<Stream> Start(int device, int priority);

  void Push(std::function<void()> work);
  std::shared_ptr<Fence> PushFence();
  bool Idle() const;
  void Synchronize();  // waits for all work so far
  void Close();
  int device() const { return device_; }
  int priority() const { return priority_; }

 private:
  Stream(int device, int priority) : device_(device), priority_(priority) {}
  void Run();

  const int device_;
  const int priority_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable progress_;
  std::deque<std::function<void()>> work_;
  long pushed_ = 0;
  long finished_ = 0;
  bool closed_ = false;
};

}  // namespace fake
