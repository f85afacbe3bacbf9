// The commands that other threads give to an engine's thread, and the state of the engine that these threads
// see.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "base/request.h"

namespace tfddl {

struct CancelCommand {
  std::string key;
};
struct ShutdownCommand {
  bool mine;  // or a peer's
};
// Whether the end of a poll wakes the engine's thread.
enum class Wake {
  kNo,
  kSoon,  // unless it wakes up by itself, as it does while it waits for a limited time
  kNow,
};
using EngineCommand = std::variant<Request, CancelCommand, ShutdownCommand>;

class EngineControl {
 public:
  // For any thread.
  //
  // Returns false, and does not touch `command`, after the engine's thread has ended.
  bool Push(EngineCommand&& command);
  // Between these two the caller takes all commands itself, and no command wakes the engine's thread.
  void BeginPoll();
  void EndPoll(Wake wake);
  void Fail(const std::string& reason);  // the first reason stays
  std::optional<std::string> failure() const;
  bool closed() const;
  // Returns false when the engine has neither closed nor failed within `limit_s` seconds.
  bool WaitUntilClosed(double limit_s);
  // Asks the thread to end; an engine that is neither closed nor failed fails with `reason`.
  void Stop(const std::string& reason);

  // For the engine's thread.
  std::deque<EngineCommand> TakeCommands();
  void Close();
  // Waits for a command, the end of a poll that wakes it, a stop, or a failure that the caller does not know
  // (`failed`: it knows of one); at most for `limit`.
  void Wait(bool failed, std::optional<std::chrono::microseconds> limit);
  // Whether the thread has to end now; no command is taken after that. `failed`: all requests have failed.
  bool Ends(bool failed);

 private:
  mutable std::mutex mutex_;  // everything below
  std::condition_variable wake_;
  std::condition_variable closed_or_failed_;
  std::deque<EngineCommand> commands_;
  std::optional<std::string> failure_;
  bool closed_ = false;  // all members have agreed to end
  bool stop_ = false;
  bool polled_ = false;
  bool woken_ = false;  // by the end of a poll
  bool timed_ = false;  // the engine's thread waits, for a limited time
  bool ended_ = false;
};

}  // namespace tfddl
