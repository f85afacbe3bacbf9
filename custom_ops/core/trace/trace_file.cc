#include "core/trace/trace_file.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace tfddl {
namespace {

constexpr size_t kMaxBytes = size_t{16} << 20;
constexpr auto kPause = std::chrono::milliseconds(100);
constexpr auto kSilence = std::chrono::seconds(1);

}  // namespace

TraceFile::TraceFile(int file, std::function<void()> pulse)
    : file_(file), pulse_(std::move(pulse)), thread_([this] { Loop(); }) {}

void TraceFile::Add(const std::string& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (closed_ || failed_) return;
  if (text_.empty()) wake_.notify_one();
  text_ += event;
  text_ += ",\n";
}

bool TraceFile::Crowded() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return text_.size() >= kMaxBytes || failed_;
}

std::string TraceFile::Close(const std::string& last) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return "";
    closed_ = true;
    text_ += last + "\n]\n";
  }
  wake_.notify_one();
  thread_.join();
  close(file_);
  return error_;
}

void TraceFile::Loop() {
  prctl(PR_SET_NAME, "tfddl-timeline");
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    if (!wake_.wait_for(lock, kSilence, [this] { return closed_ || !text_.empty(); })) {
      lock.unlock();
      pulse_();
      lock.lock();
      continue;
    }
    const bool last = closed_;
    std::string text;
    text.swap(text_);
    lock.unlock();
    Write(text);
    lock.lock();
    if (last) return;
    wake_.wait_for(lock, kPause, [this] { return closed_; });
  }
}

// Uses write(): a forked process would write the buffer of stdio again when it ends.
void TraceFile::Write(const std::string& text) {
  for (size_t written = 0; written < text.size() && !failed_;) {
    const ssize_t count = write(file_, text.data() + written, text.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      error_ = std::strerror(errno);
      failed_ = true;
    }
  }
}

}  // namespace tfddl
