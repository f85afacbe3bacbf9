// The one interface to a way of moving bytes between the members of a process set.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tfddl {

class Arena;

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

  // The length of the messages into which a long range is best cut; the same on all members.
  // Small enough that reducing one piece overlaps with moving the next and stays in the second-level
  // cache, large enough that a message's fixed cost does not show.
  virtual size_t piece_bytes() const { return size_t{256} << 10; }

  virtual Handle Send(int peer, int tag, const void* data, size_t bytes) = 0;
  virtual Handle Receive(int peer, int tag, void* data, size_t bytes) = 0;

  // As Receive, but the message may stay where its sender put it. By the time Test returns true, *data
  // is there or at `scratch`; it is valid until Release(peer, *data).
  virtual Handle ReceiveView(int peer, int tag, void* scratch, size_t bytes, const void** data) {
    *data = scratch;
    return Receive(peer, tag, scratch, bytes);
  }
  virtual void Release(int /*peer*/, const void* /*data*/) {}

  // Memory of this member that peers read and write where it lies (transport/arena.h); null: there is none.
  // What is to be done with it they tell each other by messages.
  virtual std::shared_ptr<Arena> arena() const { return nullptr; }
  // Where `peer`'s arena lies in this process; null when it is out of reach. Of two members either both reach
  // the other's or none does.
  virtual char* ArenaOf(int /*peer*/) const { return nullptr; }
  // Where a result of `bytes` lies in this process, of which `peer` has said that it lies at `place` in its
  // arena.
  virtual char* Reach(int peer, uint64_t place, size_t /*bytes*/) { return ArenaOf(peer) + place; }

  // Of each member a number that it has in common with those on its host; empty: nothing is known of hosts,
  // or nothing is to be made of it. The same on all members.
  const std::vector<int>& hosts() const { return hosts_; }
  void set_hosts(std::vector<int> hosts) { hosts_ = std::move(hosts); }

  // True once the transfer is complete; the handle is gone then.
  virtual bool Test(Handle handle) = 0;

  // Gives up a Receive that nobody will send to any more.
  virtual void Cancel(Handle handle) = 0;

  // Whether something that no handle stands for still has to leave, after another attempt to send it.
  virtual bool unsent() { return false; }

  // How many transfers have completed, those that were over at once too: tells a waiting thread whether
  // anything moves.
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 protected:
  void CountCompleted() { completed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> completed_{0};
  std::vector<int> hosts_;
};

}  // namespace tfddl
