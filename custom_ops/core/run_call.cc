#include "core/run_call.h"

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "core/collective.h"

namespace tfddl {
namespace {

std::mutex pool_mutex;
ScratchPool* const pool = new ScratchPool;  // programs may run until the very end

// Memory that the request uses in place of the program's, and which lives for as long as the request.
class Staging {
 public:
  explicit Staging(size_t bytes) {
    std::lock_guard<std::mutex> lock(pool_mutex);
    memory_ = pool->Take(bytes);
  }
  ~Staging() {
    std::lock_guard<std::mutex> lock(pool_mutex);
    pool->Give(std::move(memory_));
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  char* data() { return memory_.data(); }

 private:
  std::vector<char> memory_;
};

class Outcome {
 public:
  void Set(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    status_ = status;
    set_.notify_all();
  }
  Status Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    set_.wait(lock, [this] { return status_.has_value(); });
    return *status_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable set_;
  std::optional<Status> status_;
};

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

bool InPlace(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBroadcast; }

// Where the call's tensors lie in the staging memory: all inputs, then all outputs; one range where both are
// the same.
struct Layout {
  explicit Layout(const Call& call) {
    const auto element = static_cast<int64_t>(SizeOf(call.dtype));
    for (const Shape& shape : call.shapes) in.push_back(static_cast<size_t>(Elements(shape) * element));
    for (const Shape& shape : call.OutputShapes())
      out.push_back(static_cast<size_t>(Elements(shape) * element));
    out_begin = InPlace(call.kind) ? 0 : std::accumulate(in.begin(), in.end(), size_t{0});
    total = out_begin + std::accumulate(out.begin(), out.end(), size_t{0});
  }
  std::vector<size_t> in;  // bytes
  std::vector<size_t> out;
  size_t out_begin = 0;
  size_t total = 0;
};

// One range is reduced as fast as the engine reduces a group, which it would have to pack first.
bool ReducesAsOne(const Call& call) {
  const bool elementwise = call.op == ReduceOp::kAverage || call.op == ReduceOp::kSum ||
                           call.op == ReduceOp::kMin || call.op == ReduceOp::kMax ||
                           call.op == ReduceOp::kProduct;
  return call.kind == Kind::kAllreduce && elementwise;
}

std::vector<Buffer> Buffers(const Call& call, const Layout& layout, char* memory) {
  if (ReducesAsOne(call)) {
    return {{memory, memory, static_cast<int64_t>(layout.total / SizeOf(call.dtype))}};
  }
  std::vector<Buffer> buffers;
  char* in = memory;
  char* out = memory + layout.out_begin;
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    const auto& shape = call.shapes[i];
    const bool rows = !InPlace(call.kind);
    buffers.push_back({in, out, Elements(shape), rows ? shape.at(0) : 0, rows ? RowElements(shape) : 0});
    in += layout.in[i];
    out += layout.out[i];
  }
  return buffers;
}

// A program has fixed shapes, so that the rows of all ranks have to be as many as this rank's.
Status CheckRows(const Call& call, const std::vector<int64_t>& rows) {
  const auto size = static_cast<size_t>(call.size);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int64_t mine = call.shapes[i / size][0];
    const int64_t expected = call.kind == Kind::kAlltoall ? mine / call.size : mine;
    if (rows[i] == expected) continue;
    std::string received;
    for (size_t rank = 0; rank < size; ++rank) {
      received += (rank ? ", " : "") + std::to_string(rows[i / size * size + rank]);
    }
    return Status(Code::kInvalidArgument,
                  std::string(NameOf(call.kind)) +
                      " inside a function compiled by XLA (jit_compile=True) needs equally many rows from "
                      "all ranks, because its shapes are fixed: use jit_compile=False, or pad the rows. "
                      "Received: rows by rank " +
                      received + ", expected " + std::to_string(expected) + " from each");
  }
  return Status();
}

Request MakeRequest(const Call& call, int root, const Layout& layout, char* memory) {
  Request request = ToRequest(call, call.shapes);
  request.root = root;
  request.buffers = Buffers(call, layout, memory);
  if (call.kind == Kind::kAlltoall) {
    request.splits.assign(static_cast<size_t>(call.size), call.shapes.at(0).at(0) / call.size);
  }
  if (call.kind == Kind::kAllgather || call.kind == Kind::kAlltoall) {
    request.allocate = [call, buffers = request.buffers](const std::vector<int64_t>& rows,
                                                         std::vector<void*>* out) {
      for (const Buffer& buffer : buffers) out->push_back(buffer.out);
      return CheckRows(call, rows);
    };
  }
  return request;
}

Status Refusal(const Engine& engine, const Call& call) {
  if (call.kind == Kind::kBroadcast && engine.MemberOf(call.root) < 0) {
    return Status(Code::kInvalidArgument, "root_rank must be " + engine.DescribeMembers() +
                                              ". Received: " + std::to_string(call.root));
  }
  // The shapes of the others' results do not depend on the job.
  const bool depends =
      call.kind == Kind::kAllgather || call.kind == Kind::kReducescatter || call.kind == Kind::kAlltoall;
  if (!depends || (call.size == engine.size() && call.rank == engine.rank())) return Status();
  return Status(Code::kFailedPrecondition, "this program was compiled for rank " + std::to_string(call.rank) +
                                               " of " + std::to_string(call.size) +
                                               ": trace the function anew after hvd.init(). Received: rank " +
                                               std::to_string(engine.rank()) + " of " +
                                               std::to_string(engine.size()));
}

}  // namespace

Request ToRequest(const Call& call, const std::vector<Shape>& inputs) {
  Request request;
  request.name = call.name;
  request.signature = call.Signature(inputs);
  request.bucket = call.bucket;
  request.buckets = call.buckets;
  request.kind = call.kind;
  request.dtype = call.dtype;
  request.op = call.op;
  request.prescale = std::strtod(call.prescale.c_str(), nullptr);
  request.postscale = std::strtod(call.postscale.c_str(), nullptr);
  return request;
}

Status RunCall(Engine* engine, const Call& call, const void* const* in, void* const* out) {
  const Status refusal = Refusal(*engine, call);
  if (!refusal.ok()) return refusal;
  const Layout layout(call);
  auto staging = std::make_shared<Staging>(layout.total);
  size_t offset = 0;
  const int root = call.kind == Kind::kBroadcast ? engine->MemberOf(call.root) : 0;
  const bool sends = call.kind != Kind::kBroadcast || root == engine->rank();
  for (size_t i = 0; sends && i < layout.in.size(); offset += layout.in[i++]) {
    Copy(staging->data() + offset, in[i], layout.in[i]);
  }
  Request request = MakeRequest(call, root, layout, staging->data());
  auto outcome = std::make_shared<Outcome>();
  request.keep_alive = staging;
  request.done = [outcome](const Status& status) { outcome->Set(status); };
  engine->Submit(std::move(request));
  const Status status = outcome->Wait();
  if (!status.ok()) return status;
  offset = layout.out_begin;
  for (size_t i = 0; i < layout.out.size(); offset += layout.out[i++]) {
    Copy(out[i], staging->data() + offset, layout.out[i]);
  }
  return status;
}

}  // namespace tfddl
