// Engines whose callers poll, and a caller that waits.
#pragma once

#include <future>
#include <thread>

#include "tests/engine/job.h"

namespace tfddl {

inline EngineOptions Polling() {
  EngineOptions options;
  options.busy_poll = true;
  return options;
}

// `where`: the thread on which the request ends.
inline Status Run(Engine* engine, Request request, std::thread::id* where = nullptr) {
  std::promise<Status> ended;
  request.done = [&ended, where](const Status& status) {
    if (where) *where = std::this_thread::get_id();
    ended.set_value(status);
  };
  engine->Submit(std::move(request));
  return ended.get_future().get();
}

}  // namespace tfddl
