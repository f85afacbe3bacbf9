// A file in Chrome's trace event format: a JSON array with an event a line, which viewers load without its
// end too, as a process leaves it that is killed.
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
  // Takes the file descriptor. `pulse` is called on a thread of its own for each second without an event; it
  // may add one.
  TraceFile(int file, std::function<void()> pulse);
  ~TraceFile() { Close("{}"); }

  // Adds an event, for a thread to write within a tenth of a second. Never waits for the file. Does nothing
  // after Close().
  void Add(const std::string& event);

  // Whether more waits to be written than memory should be spent on, or the file takes no more.
  bool Crowded() const;

  // Ends the array with this event and writes what is left. Returns what went wrong at any time; empty:
  // nothing. A second call does nothing.
  std::string Close(const std::string& last);

 private:
  void Loop();
  void Write(const std::string& text);

  const int file_;
  const std::function<void()> pulse_;
  std::string error_;  // the thread's, until it has ended
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable wake_;
  std::string text_ = "[\n";
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace tfddl
