// What a caller hands to the engine: one collective on one or more tensors.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rows.h"
#include "base/types.h"

namespace tfddl {

class DeviceEvent;
class Span;

// One member of a group. `in` and `out` may be the same memory.
struct Buffer {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  // elements of `in`
  // Where rows are split or joined: the first dimension of `in`, and the elements of one row.
  int64_t rows = 0;
  int64_t row = 0;
};

// The name of hvd.join() among the live requests of a rank.
constexpr char kJoinKey[] = "hvd.join()";

struct Request {
  // The name on which ranks agree; of a bucket: the name of its sequence.
  std::string name;

  // What must be equal on all members (signature.h).
  std::string signature;

  // Place in a sequence: the buckets of one gradient computation, agreed on by a single vote.
  int bucket = 0;
  int buckets = 1;

  // The step (one run of a TensorFlow graph) that this request belongs to; 0: it stands alone.
  // An agreed error fails all pending requests of its step.
  int64_t step = 0;

  Kind kind = Kind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;
  AverageOver average_over = AverageOver::kSize;  // of a join

  // The members of the group; barrier takes none, broadcast and alltoall take one. `out` of allgather and
  // alltoall is left to `allocate`; that of a join is one int32, the rank that joined last.
  std::vector<Buffer> buffers;
  // Of a group that is reduced on the host: memory in an arena in which the outputs lie one behind the other.
  // Members whose `out` is elsewhere have their place there too. Null: there is none.
  std::shared_ptr<char> packed;
  std::vector<int64_t> splits;  // alltoall: how many rows go to each rank

  // Allgather and alltoall: called on the completion thread once all ranks' rows are known. Of each buffer,
  // one behind the other, `rows` has the rows that come from each rank. Stores each output's memory in *out.
  std::function<Status(const std::vector<int64_t>& rows, std::vector<void*>* out)> allocate;

  // Of an allgather on the host: outputs for the case that all ranks bring as many rows as this one, and none
  // has joined. Where all members have them and it is so, nothing needs to be allocated and told before bytes
  // move. Empty: there are none.
  std::vector<void*> expected;

  // Where all buffers lie, those that `allocate` makes too. On a GPU a bucket is no part of a sequence
  // (AgreeAlone): collectives there have to start in one order on all members.
  Device device = Device::kHost;
  std::shared_ptr<DeviceEvent>
      ready;  // on a GPU: from when on buffers may be touched (core/collectives/device_plane.h)

  // On a GPU, where the caller would not wait for the end: called on the engine's thread once the collective
  // is on its stream, with the event that marks the end there. Null: nobody asks.
  std::function<void(std::shared_ptr<DeviceEvent>)> launched;

  // Where to store what an Average divides by at this time, for a caller that gathers and divides by itself.
  int64_t* divisor = nullptr;

  // Of a barrier: what the members agree on after it shares its GPUs with other sets (DeviceQueue::ShareGpu).
  bool shares_gpu = false;

  // Set before Engine::Cancel(), whose word may overtake the request: that must not wait for ever. Null:
  // nobody cancels it.
  std::shared_ptr<const std::atomic<bool>> cancelled;

  // Called exactly once, on the completion thread.
  std::function<void(const Status&)> done;

  // Whatever keeps the buffers valid. Held until no byte of them can be touched any more, which
  // may be after done() when the job failed in the middle of a transfer.
  std::shared_ptr<void> keep_alive;

  // The engine's, for the timeline (timeline.h); null where that is off.
  std::shared_ptr<Span> span;

  // Unique among the live requests of a rank; also the name in the flight log.
  std::string key() const { return buckets == 1 ? name : name + "#" + std::to_string(bucket); }
};

// Makes a bucket a name of its own. The first keeps that of the sequence: a peer whose buckets are a
// sequence, on the CPU, meets it and all are told.
inline void AgreeAlone(Request* request) {
  if (request->bucket > 0) request->name = request->key();
  request->bucket = 0;
  request->buckets = 1;
}

}  // namespace tfddl
