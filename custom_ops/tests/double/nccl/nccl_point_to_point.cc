// The sends and receives of a group run at the same time, as in NCCL.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <tuple>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/device.h"
#include "tests/double/nccl/nccl_operation.h"
#include "tests/double/nccl/nccl_reduce.h"

namespace fake {
namespace {

struct Header {
  uint64_t count;
  int64_t type;
};

// One message through the pipe between two ranks.
class Message {
 public:
  explicit Message(const Operation& operation)
      : operation_(operation),
        comm_(*operation.comm),
        sends_(operation.kind == Kind::kSend),
        pipe_(sends_ ? comm_.segment->pipes[comm_.rank][operation.root]
                     : comm_.segment->pipes[operation.root][comm_.rank]),
        header_{operation.count, operation.type},
        bytes_(operation.count * SizeOfType(operation.type)) {}

  bool done() const { return done_; }
  std::pair<int, bool> direction() const { return {operation_.root, sends_}; }
  std::string what() const { return "rank " + std::to_string(comm_.rank) + ": " + Describe(operation_); }

  bool Accessible() const {
    const void* memory = sends_ ? operation_.in : operation_.out;
    if (CheckAccess(comm_.device, memory, bytes_, what())) return true;
    comm_.Fail(ncclUnhandledCudaError, what());
    return false;
  }

  // Whether bytes moved.
  bool Progress() {
    const size_t before = moved_;
    if (sends_)
      Send();
    else if (!Receive())
      return false;
    done_ = moved_ == sizeof header_ + bytes_;
    return moved_ != before || done_;
  }

 private:
  void Send() {
    const uint64_t written = pipe_.written.load(std::memory_order_relaxed);
    const size_t room = kSlotBytes - (written - pipe_.read.load(std::memory_order_acquire));
    const size_t bytes = std::min(room, sizeof header_ + bytes_ - moved_);
    for (size_t i = 0; i < bytes; ++i) {
      const size_t at = moved_ + i;
      pipe_.ring[(written + i) % kSlotBytes] =
          at < sizeof header_ ? reinterpret_cast<const char*>(&header_)[at]
                              : static_cast<const char*>(operation_.in)[at - sizeof header_];
    }
    moved_ += bytes;
    pipe_.written.store(written + bytes, std::memory_order_release);
  }

  bool Receive() {
    const uint64_t read = pipe_.read.load(std::memory_order_relaxed);
    const size_t there = pipe_.written.load(std::memory_order_acquire) - read;
    const bool in_header = moved_ < sizeof header_;
    const size_t wanted = (in_header ? sizeof header_ : sizeof header_ + bytes_) - moved_;
    const size_t bytes = std::min(there, wanted);
    char* to = in_header ? reinterpret_cast<char*>(&theirs_) + moved_
                         : static_cast<char*>(operation_.out) + moved_ - sizeof header_;
    for (size_t i = 0; i < bytes; ++i) to[i] = pipe_.ring[(read + i) % kSlotBytes];
    moved_ += bytes;
    pipe_.read.store(read + bytes, std::memory_order_release);
    return moved_ != sizeof header_ || !in_header || Matches();
  }

  bool Matches() {
    if (!std::memcmp(&theirs_, &header_, sizeof header_)) return true;
    Fault(what() + " does not match what the peer sends: " + std::to_string(theirs_.count) + " " +
          NameOfType(static_cast<int>(theirs_.type)));
    comm_.Fail(ncclInvalidUsage, "a receive does not match its send");
    return false;
  }

  Operation operation_;
  Comm& comm_;
  const bool sends_;
  Pipe& pipe_;
  const Header header_;
  Header theirs_{};
  const size_t bytes_;
  size_t moved_ = 0;
  bool done_ = false;
};

// Messages in one direction to one peer move one after the other. True once all are done.
bool Round(std::vector<Message>* messages, bool* moved) {
  std::set<std::pair<int, bool>> busy;
  for (Message& message : *messages) {
    if (message.done() || busy.count(message.direction())) continue;
    *moved |= message.Progress();
    if (!message.done()) busy.insert(message.direction());
  }
  return busy.empty();
}

}  // namespace

void RunPointToPoint(const std::vector<Operation>& operations) {
  Comm& comm = *operations.front().comm;
  std::vector<Message> messages;
  for (const Operation& operation : operations) messages.emplace_back(operation);
  for (const Message& message : messages)
    if (!message.Accessible()) return;
  auto last_moved = std::chrono::steady_clock::now();
  bool warned = false;
  for (bool moved = false; !Round(&messages, &moved) && !comm.aborted(); moved = false) {
    if (comm.State() != ncclSuccess && comm.State() != ncclInProgress) return;
    const auto now = std::chrono::steady_clock::now();
    if (moved) {
      last_moved = now;
      continue;
    }
    SleepMicroseconds(50);
    const long limit = Setting("stuck_ms");
    if (warned || !limit || now - last_moved < std::chrono::milliseconds(limit)) continue;
    warned = true;
    for (const Message& message : messages)
      if (!message.done()) Warn(message.what() + " waits for its peer");
  }
  for (const Message& message : messages) message.Accessible();
}

}  // namespace fake
