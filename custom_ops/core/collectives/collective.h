// A collective in progress: started when all members have agreed on it, polled by the engine thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/request.h"
#include "core/collectives/participants.h"
#include "transport/transport.h"

namespace tfddl {

// Each collective owns two tags of the transport, so that collectives that run at the same time, or
// start in different orders on different members, cannot take each other's messages.
struct Lane {
  Transport* transport;  // among those that take part: its ranks are their places
  int tag;               // and tag + 1
  const Participants* participants;
};

// From here on what messages would carry goes through memory that ranks of a host reach (transport/arena.h).
constexpr size_t kSharedBytes = size_t{32} << 10;

class Collective {
 public:
  virtual ~Collective() = default;
  // Moves what can be moved without waiting. True when complete: no memory is touched after that.
  virtual bool Poll() = 0;
  // The outcome, once complete.
  virtual Status status() const { return Status(); }
};

// Reused between collectives: fresh memory costs a page fault every 4 KiB.
class ScratchPool {
 public:
  std::vector<char> Take(size_t bytes);
  void Give(std::vector<char> memory);

 private:
  std::vector<std::vector<char>> free_;
  size_t held_ = 0;
};

// Every element is reduced by one owner, in the order of the ranks, and copied to the others: the
// result has the same bits on all ranks, from run to run.
std::unique_ptr<Collective> MakeAllreduce(Lane lane, ScratchPool* pool, const Request& request);

// The same reduction, of which each rank keeps its own slice: RowsBegin() in rows.h.
std::unique_ptr<Collective> MakeReducescatter(Lane lane, ScratchPool* pool, const Request& request);

// Binomial tree from request.root, which has to attend, in pieces that travel one behind the other.
std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request);

std::unique_ptr<Collective> MakeBarrier();

// Allgather and alltoall. Rows first, then each member allocates its output and says whether it could, then
// the data.
// `post` runs a function on the completion thread, where TensorFlow may be called.
std::unique_ptr<Collective> MakeRowExchange(Lane lane, const Request& request,
                                            std::function<void(std::function<void()>)> post);

}  // namespace tfddl
