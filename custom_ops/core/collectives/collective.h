// A collective in progress: the engine starts it once all members have agreed on it, and polls it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/request.h"
#include "core/topology/participants.h"
#include "transport/transport.h"

namespace tfddl {

// The transport and the tags of one collective. Each collective has two tags of its own, so collectives that
// run at the same time cannot take each other's messages.
struct Lane {
  Transport* transport;  // among the participants; its ranks are their indices
  int tag;               // the first tag; the second one is tag + 1
  const Participants* participants;
};

// Runs a function on a thread that may call TensorFlow.
using Post = std::function<void(std::function<void()>)>;

// Data of this size and larger travels through memory that the ranks of a host share (transport/arena.h).
constexpr size_t kSharedBytes = size_t{32} << 10;

class Collective {
 public:
  virtual ~Collective() = default;
  // Makes progress without waiting. True once the collective is complete and will touch no more memory.
  virtual bool Poll() = 0;
  // The result, once complete.
  virtual Status status() const { return Status(); }
};

// Scratch memory, reused between collectives: new memory costs a page fault every 4 KiB.
class ScratchPool {
 public:
  std::vector<char> Take(size_t bytes);
  void Give(std::vector<char> memory);

 private:
  std::vector<std::vector<char>> free_;
  size_t held_ = 0;
};

// Each element is reduced in the order of the ranks, so the result has the same bits on all ranks and in all
// runs.
std::unique_ptr<Collective> MakeAllreduce(Lane lane, ScratchPool* pool, const Request& request);

// The same reduction; each rank keeps its own rows (RowsBegin() in rows.h).
std::unique_ptr<Collective> MakeReducescatter(Lane lane, ScratchPool* pool, const Request& request);

// A pipelined broadcast along a binomial tree. The root has to be a participant.
std::unique_ptr<Collective> MakeBroadcast(Lane lane, const Request& request);

std::unique_ptr<Collective> MakeBarrier();

// Allgather and alltoall. The members exchange their numbers of rows, allocate their outputs, tell each other
// whether they could, and then send the data.
std::unique_ptr<Collective> MakeRowExchange(Lane lane, const Request& request, Post post);

}  // namespace tfddl
