// A file in Chrome's trace event format: a JSON array with one event a line. Viewers also load an array
// without its end, which a killed process leaves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tfddl {

class TraceFile {
 public:
  // Takes the file descriptor. `pulse` is called on the file's own thread after each second without an event;
  // it may add an event.
  TraceFile(int file, std::function<void()> pulse);
  ~TraceFile() { Close("{}"); }

  // Adds an event, which a thread writes within a tenth of a second. Never waits for the file. Does nothing
  // after Close().
  void Add(const std::string& event);

  // Whether the buffer is full or writing has failed.
  bool Crowded() const;

  // Ends the array with this event and writes the rest. Returns the first error of any write; empty: none. A
  // second call does nothing.
  std::string Close(const std::string& last);

 private:
  void Loop();
  void Write(const std::string& text);

  const int file_;
  const std::function<void()> pulse_;
  std::string error_;  // used by the thread until it ends
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // for the members below
  std::condition_variable wake_;
  std::string text_ = "[\n";
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace tfddl
