#include "base/recorder.h"

#include <algorithm>
#include <chrono>

namespace tfddl {
namespace {

constexpr size_t kSignatureBytes = 500;

Event LastEvent(const Operation& operation) {
  const char* end = operation.failed ? "error" : "done";
  if (operation.ended_us) return {operation.ended_us, end, operation.name};
  if (operation.started_us) return {operation.started_us, "start", operation.name};
  return {operation.submitted_us, "submit", operation.name};
}

}  // namespace

int64_t NowMicros() {
  using std::chrono::duration_cast;
  return duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A place keeps the memory of its texts for the next operation.
uint64_t Recorder::Submitted(const Request& request) {
  const std::string key = request.key();
  std::lock_guard<std::mutex> lock(mutex_);
  last_ = ++count_;
  Operation& operation = ring_[count_ % kCapacity];
  operation.number = count_;
  operation.name.assign(key);
  operation.signature.assign(request.signature, 0, kSignatureBytes);
  operation.bytes = request.bytes();
  operation.ticket = -1;
  operation.submitted_us = NowMicros();
  operation.started_us = operation.ended_us = 0;
  operation.failed = false;
  return count_;
}

Operation* Recorder::Find(uint64_t number) {
  Operation& operation = ring_[number % kCapacity];
  if (operation.number != number) return nullptr;
  last_ = number;
  return &operation;
}

void Recorder::Started(uint64_t number, uint64_t ticket) {
  std::lock_guard<std::mutex> lock(mutex_);
  Operation* const operation = Find(number);
  if (!operation) return;
  operation->ticket = static_cast<int64_t>(ticket);
  operation->started_us = NowMicros();
}

void Recorder::Ended(uint64_t number, bool ok) {
  std::lock_guard<std::mutex> lock(mutex_);
  Operation* const operation = Find(number);
  if (!operation) return;
  operation->failed = !ok;
  operation->ended_us = NowMicros();
}

std::optional<Event> Recorder::Last() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (count_ == 0) return std::nullopt;
  return LastEvent(At(last_));
}

std::vector<Operation> Recorder::Operations() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Operation> operations;
  const uint64_t kept = std::min<uint64_t>(count_, kCapacity);
  operations.reserve(kept);
  for (uint64_t number = count_ - kept + 1; number <= count_; ++number) operations.push_back(At(number));
  return operations;
}

}  // namespace tfddl
