#include "tests/double/cuda/stream.h"

#include <thread>
#include <utility>

#include "tests/double/control_internal.h"

namespace fake {

void Fence::Set() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    when_ = std::chrono::steady_clock::now();
  }
  changed_.notify_all();
}

void Fence::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

bool Fence::Done() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

std::chrono::steady_clock::time_point Fence::When() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return when_;
}

std::shared_ptr<Stream> Stream::Start(int device, int priority) {
  std::shared_ptr<Stream> stream(new Stream(device, priority));
  std::thread([stream] { stream->Run(); }).detach();
  return stream;
}

void Stream::Push(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    ++pushed_;
  }
  changed_.notify_one();
}

std::shared_ptr<Fence> Stream::PushFence() {
  auto fence = std::make_shared<Fence>();
  Push([fence] { fence->Set(); });
  return fence;
}

bool Stream::Idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return finished_ == pushed_;
}

void Stream::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  progress_.wait(lock, [this, until = pushed_] { return finished_ >= until; });
}

void Stream::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  changed_.notify_one();
}

void Stream::Run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return closed_ || !work_.empty(); });
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    SleepMicroseconds(Setting("stream_delay_us"));
    work();
    work = nullptr;  // destroys the captures of the work before its fence completes
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ++finished_;
    }
    progress_.notify_all();
  }
}

}  // namespace fake
