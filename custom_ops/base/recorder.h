// The flight recorder: a ring of the last operations and a few counters, always on.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/request.h"

namespace tfddl {

// Microseconds on a monotonic clock. All processes of a machine share its origin, which is arbitrary.
int64_t NowMicros();

// "12 s": whole seconds, with the unit.
inline std::string Seconds(int64_t micros) { return std::to_string(micros / 1000000) + " s"; }

// One request and what became of it. Times are NowMicros(); 0: not yet.
struct Operation {
  uint64_t number = 0;    // counts the requests of an engine from 1
  std::string name;       // Request::key()
  std::string signature;  // its first 500 bytes
  int64_t bytes = 0;      // of all inputs
  int64_t ticket = -1;    // -1: not agreed on
  int64_t submitted_us = 0;
  int64_t started_us = 0;
  int64_t ended_us = 0;
  bool failed = false;
};

struct Event {
  int64_t time_us;
  const char* type;  // "submit", "start", "done" or "error"
  std::string name;
};

struct Counters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> votes{0};
  std::atomic<uint64_t> empty_votes{0};  // votes that started no collective
  std::atomic<uint64_t> bytes_reduced{0};
  std::atomic<uint64_t> polled{0};  // requests whose threads polled until they ended
};

struct CounterField {
  const char* name;  // in hvd.stats()
  std::atomic<uint64_t> Counters::* value;
};
inline constexpr CounterField kCounters[] = {
    {"requests", &Counters::requests},
    {"errors", &Counters::errors},
    {"votes", &Counters::votes},
    {"empty_votes", &Counters::empty_votes},
    {"bytes_reduced", &Counters::bytes_reduced},
    {"polled", &Counters::polled},
};

class Recorder {
 public:
  // Returns the number of the operation, for the other calls.
  uint64_t Submitted(const Request& request);
  void Started(uint64_t number, uint64_t ticket);
  void Ended(uint64_t number, bool ok);

  std::vector<Operation> Operations() const;  // oldest first
  std::optional<Event> Last() const;
  Counters counters;

 private:
  static constexpr size_t kCapacity = 1024;
  Operation* Find(uint64_t number);  // null: a later operation has its place
  const Operation& At(uint64_t number) const { return ring_[number % kCapacity]; }
  mutable std::mutex mutex_;
  std::vector<Operation> ring_ = std::vector<Operation>(kCapacity);
  uint64_t count_ = 0;
  uint64_t last_ = 0;  // the operation with the last event
};

}  // namespace tfddl
