// The interface of all transports: it moves bytes between the members of a process set.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tfddl {

class Arena;

// Nonblocking point-to-point messages. Messages with the same tag between two members arrive in the order of
// their sends. The memory of a transfer must stay valid until Test() has returned true for its handle.
//
// Any thread may call Send, Receive and Test, but only one thread may use a handle. A transport that fails
// throws std::runtime_error, and the engine fails the job.
class Transport {
 public:
  using Handle = uint64_t;
  static constexpr Handle kNothing = 0;

  virtual ~Transport() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Tags run from 0 to tags() - 1; at least 32767.
  virtual int tags() const = 0;

  // The best length of a message when a long range is cut into pieces; the same on all members. Small enough
  // for a piece to stay in the second-level cache and for its reduction to overlap with the next transfer;
  // large enough to hide the fixed cost of a message.
  virtual size_t piece_bytes() const { return size_t{256} << 10; }

  virtual Handle Send(int peer, int tag, const void* data, size_t bytes) = 0;
  virtual Handle Receive(int peer, int tag, void* data, size_t bytes) = 0;

  // As Receive, but without a copy if possible. Once Test returns true, *data points to the message: either
  // in the transport's own memory or at `scratch`. The message is valid until Release(peer, *data).
  virtual Handle ReceiveView(int peer, int tag, void* scratch, size_t bytes, const void** data) {
    *data = scratch;
    return Receive(peer, tag, scratch, bytes);
  }
  virtual void Release(int /*peer*/, const void* /*data*/) {}

  // Memory of this member that peers can read and write directly (transport/arena.h); null: none. Members
  // coordinate their accesses by messages.
  virtual std::shared_ptr<Arena> arena() const { return nullptr; }
  // The address of `peer`'s arena in this process; null if it is not mapped. Two members map
  // each other's arenas, or neither maps any.
  virtual char* ArenaOf(int /*peer*/) const { return nullptr; }
  // The address in this process of `bytes` bytes at `offset` of `peer`'s arena.
  virtual char* Reach(int peer, uint64_t offset, size_t /*bytes*/) { return ArenaOf(peer) + offset; }

  // For each member, the number of its host. The same on all members. Empty: hosts are unknown or ignored.
  const std::vector<int>& hosts() const { return hosts_; }
  void set_hosts(std::vector<int> hosts) { hosts_ = std::move(hosts); }

  // True once the transfer is complete. The handle is invalid from then on.
  virtual bool Test(Handle handle) = 0;

  // Gives up a Receive whose message will never come.
  virtual void Cancel(Handle handle) = 0;

  // Whether transfers read and write their memory outside of the calls too. If not, nothing touches that
  // memory once this member makes no more calls.
  virtual bool moves_by_itself() const { return false; }

  // Tries again to send control messages, which have no handle. True if some are still unsent.
  virtual bool unsent() { return false; }

  // The number of completed transfers. A waiting thread sees in it whether data moves.
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 protected:
  void CountCompleted() { completed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> completed_{0};
  std::vector<int> hosts_;
};

}  // namespace tfddl
