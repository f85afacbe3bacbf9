// The one interface to a way of moving bytes between the members of a process set.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tfddl {

// Nonblocking point-to-point messages. Messages between two members with the same tag arrive in the
// order sent. Memory given to Send or Receive stays valid until Test has returned true for it.
//
// Send, Receive and Test may be called from any thread, but each handle from one thread only. A
// failing transport throws std::runtime_error; the engine turns that into a failed job.
class Transport {
 public:
  using Handle = uint64_t;
  static constexpr Handle kNothing = 0;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Tags run from 0 to tags() - 1; at least 32767.
  virtual int tags() const = 0;

  virtual Handle Send(int peer, int tag, const void* data, size_t bytes) = 0;
  virtual Handle Receive(int peer, int tag, void* data, size_t bytes) = 0;

  // True once the transfer is complete; the handle is gone then.
  virtual bool Test(Handle handle) = 0;

  // Gives up a Receive that nobody will send to any more.
  virtual void Cancel(Handle handle) = 0;

  // How many transfers have completed: tells a waiting thread whether anything moves.
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 protected:
  void CountCompleted() { completed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> completed_{0};
};

}  // namespace tfddl
