// One collective on one or more tensors, as a caller submits it to the engine.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/rows.h"
#include "base/types.h"

namespace tfddl {

class DeviceEvent;
class Span;

// One tensor of a request. `in` and `out` may be the same memory.
struct Buffer {
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;  // elements of `in`
  int64_t rows = 0;   // the first dimension of `in`, if the collective splits or joins rows
  int64_t row = 0;    // elements of one row
};

// The key of hvd.join() among the live requests of a rank.
constexpr char kJoinKey[] = "hvd.join()";

struct Request {
  // The ranks agree on this name. All buckets of a sequence have the name of the sequence.
  std::string name;

  // All properties that must be equal on all members (signature.h).
  std::string signature;

  // A sequence holds the buckets of one gradient computation. The ranks agree on it in a single vote.
  int bucket = 0;
  int buckets = 1;

  // The step (one run of a TensorFlow graph) of this request; 0: none. An agreed error fails all pending
  // requests of its step.
  int64_t step = 0;

  Kind kind = Kind::kAllreduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  int root = 0;
  AverageOver average_over = AverageOver::kSize;  // join only

  // Barrier has none; broadcast and alltoall have one. Allgather and alltoall get each `out` from `allocate`.
  // Join has one int32 for its output: the rank that joined last.
  std::vector<Buffer> buffers;
  // Group reductions on the host: a block of an arena with room for all outputs, one after the other. An
  // output may lie elsewhere; its room in the block remains. Null: no block.
  std::shared_ptr<char> packed;
  std::vector<int64_t> splits;  // alltoall only: the number of rows for each rank

  // Allgather and alltoall: allocates the outputs and stores their addresses in *out. `rows` has one number
  // for each buffer and rank: buffer 0 from rank 0, buffer 0 from rank 1, and so on. Runs once all numbers of
  // rows are known, on the completion thread; on a GPU on a thread where it may wait for memory.
  std::function<Status(const std::vector<int64_t>& rows, std::vector<void*>* out)> allocate;

  // Allgather on the host: outputs for the common case, in which all ranks bring equally many rows and none
  // has joined. If all members have them and the case holds, the members skip `allocate`. Empty: none.
  std::vector<void*> expected;

  // All buffers lie on this device, outputs of `allocate` included. On a GPU a bucket belongs to no sequence
  // (AgreeAlone): GPU collectives have to start in the same order on all members.
  Device device = Device::kHost;
  // On a GPU: the buffers may be used after this event (core/collectives/device_plane.h).
  std::shared_ptr<DeviceEvent> ready;

  // On a GPU, for callers that do not wait for the end on the host: called in a round of the engine once the
  // collective is on its stream, with an event at its end. done() is then called in a round as well, and must
  // not wait. May be null.
  std::function<void(std::shared_ptr<DeviceEvent>)> launched;

  // Receives the current divisor of an Average, for a caller that gathers and divides by itself. May be null.
  int64_t* divisor = nullptr;

  // Barrier only: from now on this set shares its GPUs with other sets (DeviceQueue::ShareGpu).
  bool shares_gpu = false;

  // Set before Engine::Cancel(). A cancellation may overtake its request, which then fails at once. Null:
  // nobody cancels this request.
  std::shared_ptr<const std::atomic<bool>> cancelled;

  // Called exactly once: on the completion thread, inside Engine::Submit(), in a round (`launched`), or on
  // the thread of `allocate`.
  std::function<void(const Status&)> done;

  // Keeps the buffers valid until no byte of them can be touched. After a failure in the middle of a
  // transfer, this is later than done().
  std::shared_ptr<void> keep_alive;

  // The engine's span for the timeline (timeline.h); null: the timeline is off.
  std::shared_ptr<Span> span;

  // The engine's number of this request in the flight recorder.
  uint64_t number = 0;

  // Of all inputs.
  int64_t bytes() const {
    int64_t count = 0;
    for (const Buffer& buffer : buffers) count += buffer.count;
    return count * static_cast<int64_t>(SizeOf(dtype));
  }

  // Unique among the live requests of a rank. The flight recorder uses it as well.
  std::string key() const { return buckets == 1 ? name : name + "#" + std::to_string(bucket); }
};

// Takes a bucket out of its sequence and gives it a name of its own. The first bucket keeps the name of the
// sequence: if a peer submits the sequence on the CPU, the names meet and all ranks get an error.
inline void AgreeAlone(Request* request) {
  if (request->bucket > 0) request->name = request->key();
  request->bucket = 0;
  request->buckets = 1;
}

}  // namespace tfddl
