#include "core/compiled/run_call.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <utility>

#include "core/collectives/device_plane.h"
#include "core/compiled/call_memory.h"
#include "core/compiled/calls_in_flight.h"

namespace tfddl {
namespace {

// A program has fixed shapes, so all ranks have to bring as many rows as this rank.
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

void SetMemory(const Call& call, std::vector<Buffer> buffers, Request* request) {
  request->buffers = std::move(buffers);
  if (call.kind == Kind::kAlltoall) {
    request->splits.assign(static_cast<size_t>(call.size), call.shapes.at(0).at(0) / call.size);
  }
  if (call.kind == Kind::kAllgather || call.kind == Kind::kAlltoall) {
    request->allocate = [call, buffers = request->buffers](const std::vector<int64_t>& rows,
                                                           std::vector<void*>* out) {
      for (const Buffer& buffer : buffers) out->push_back(buffer.out);
      return CheckRows(call, rows);
    };
  }
}

void UseHost(const Call& call, const void* const* in, bool sends, StartedCall* started, Request* request) {
  started->memory = std::make_shared<CallMemory>(call);
  if (sends) started->memory->CopyIn(in);
  SetMemory(call, started->memory->Buffers(call), request);
  request->keep_alive = started->memory;
}

// The program does not move inputs and outputs until the call is finished.
Status UseGpu(const Call& call, const void* const* in, void* const* out, const CallContext& context,
              Engine* engine, StartedCall* started, Request* request) {
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < call.shapes.size(); ++i) {
    if (InPlace(call.kind) && Elements(call.shapes[i]) > 0 && in[i] != out[i]) {
      return Status(Code::kUnknown, "internal error: XLA gave input " + std::to_string(i) +
                                        " and its result different memory, which the call forbids");
    }
    buffers.push_back(BufferOf(call, i, in[i], out[i]));
    started->out.push_back(out[i]);
  }
  SetMemory(call, std::move(buffers), request);
  AgreeAlone(request);
  request->device = Device::kGpu;
  request->launched = [outcome = started->outcome](std::shared_ptr<DeviceEvent> end) {
    outcome->SetLaunched(std::move(end));
  };
  request->ready = engine->Record(context.gpu, context.stream);
  return Status();
}

Status Refusal(const Engine& engine, const Call& call) {
  if (call.kind == Kind::kBroadcast && engine.MemberOf(call.root) < 0) {
    return Status(Code::kInvalidArgument, "root_rank must be " + engine.DescribeMembers() +
                                              ": pass the number of such a rank" +
                                              ". Received: " + std::to_string(call.root));
  }
  // The results of the other kinds have the same shapes in each job.
  const bool depends =
      call.kind == Kind::kAllgather || call.kind == Kind::kReducescatter || call.kind == Kind::kAlltoall;
  if (!depends || (call.size == engine.size() && call.rank == engine.rank())) return Status();
  return Status(Code::kFailedPrecondition, "this program was compiled for rank " + std::to_string(call.rank) +
                                               " of " + std::to_string(call.size) +
                                               ": trace the function anew after hvd.init(). Received: rank " +
                                               std::to_string(engine.rank()) + " of " +
                                               std::to_string(engine.size()));
}

// Makes `stream` wait for the end of the collective.
Status HoldBack(const std::shared_ptr<DeviceEvent>& end, void* stream) {
  try {
    if (end) end->HoldBack(stream);
    return Status();
  } catch (const std::runtime_error& error) {
    return Status(Code::kUnknown, error.what());
  }
}

// XLA has no number for a run on a GPU: TensorFlow gives 0 to each. But one thread runs a program from its
// begin to its end, so the calls that it has started and not finished are of one run. No call of a run
// follows an error.
int64_t GpuStep() {
  // Steps of TensorFlow and runs on the host have other ranges (api/call_api.cc).
  static std::atomic<int64_t> last{int64_t{3} << 61};
  const int64_t step = CallsInFlight::Global().StepOfThread();
  return step ? step : ++last;
}

// The program ends with an error: its other calls have to end too, before its memory is reused.
Status Abandon(const CallContext& context, Status error) {
  for (const auto& started : CallsInFlight::Global().TakeStep(context.step)) {
    const auto engine = started->engine.lock();  // the engine of the call's process set
    if (engine && !started->outcome->ended()) engine->Cancel(started->key);
    if (context.gpu >= 0) HoldBack(started->outcome->WaitForLaunch().second, context.stream);
  }
  return error;
}

Status Submit(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
              void* const* out, const CallContext& context, std::shared_ptr<StartedCall>* started) {
  const Status refusal = Refusal(*engine, call);
  if (!refusal.ok()) return refusal;
  *started = std::make_shared<StartedCall>();
  Request request = ToRequest(call);
  request.signature = call.Signature(call.shapes);
  request.step = context.step;
  request.root = call.kind == Kind::kBroadcast ? engine->MemberOf(call.root) : 0;
  // A barrier is the vote alone.
  if (context.gpu < 0 || call.kind == Kind::kBarrier) {
    UseHost(call, in, call.kind != Kind::kBroadcast || request.root == engine->rank(), started->get(),
            &request);
  } else {
    const Status status = UseGpu(call, in, out, context, engine.get(), started->get(), &request);
    if (!status.ok()) return status;
  }
  (*started)->engine = engine;
  (*started)->step = context.step;
  (*started)->key = request.key();
  request.done = [outcome = (*started)->outcome](const Status& status) { outcome->SetEnded(status); };
  if (context.gpu >= 0) CallsInFlight::Global().WaitForLast(engine, (*started)->key, (*started)->outcome);
  engine->Submit(std::move(request));
  return Status();
}

Status End(Engine* engine, const StartedCall& started, const Call& call, void* const* out,
           const CallContext& context) {
  if (context.gpu < 0 || call.kind == Kind::kBarrier) {
    const Status status = started.outcome->Wait();
    if (status.ok()) started.memory->CopyOut(out);
    return status;
  }
  engine->Help([&] { return started.outcome->launched_or_ended(); });
  const auto [status, end] = started.outcome->WaitForLaunch();
  const Status held = HoldBack(end, context.stream);  // after an error too: the GPU may still write
  if (!status.ok()) return status;
  for (size_t i = 0; i < started.out.size(); ++i) {
    if (Elements(call.shapes[i]) > 0 && out[i] != started.out[i]) {
      return Status(Code::kUnknown, "internal error: XLA has moved result " + std::to_string(i) +
                                        " between the start and the end of the call, which it forbids");
    }
  }
  return held;
}

}  // namespace

Request ToRequest(const Call& call) {
  Request request;
  request.name = call.name;
  request.bucket = call.bucket;
  request.buckets = call.buckets;
  request.kind = call.kind;
  request.dtype = call.dtype;
  request.op = call.op;
  request.prescale = std::strtod(call.prescale.c_str(), nullptr);
  request.postscale = std::strtod(call.postscale.c_str(), nullptr);
  return request;
}

Status StartCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
                 void* const* out, CallContext context) {
  if (context.gpu >= 0) context.step = GpuStep();
  std::shared_ptr<StartedCall> started;
  const Status status = Submit(engine, call, in, out, context, &started);
  if (!status.ok()) return Abandon(context, status);
  CallsInFlight::Global().Add(std::move(started));
  return status;
}

Status FinishCall(const std::shared_ptr<Engine>& engine, const Call& call, void* const* out,
                  CallContext context) {
  Request names = ToRequest(call);
  std::optional<int64_t> step;
  if (context.gpu >= 0) {
    AgreeAlone(&names);
  } else {
    step = context.step;
  }
  const auto started = CallsInFlight::Global().Take(engine, step, names.key());
  if (!started)
    return Status(Code::kUnknown, "internal error: the program ends a call that it has not started");
  context.step = started->step;
  const Status status = End(engine.get(), *started, call, out, context);
  return status.ok() ? status : Abandon(context, status);
}

Status RunCall(const std::shared_ptr<Engine>& engine, const Call& call, const void* const* in,
               void* const* out, const CallContext& context) {
  std::shared_ptr<StartedCall> started;
  Status status = Submit(engine, call, in, out, context, &started);
  if (status.ok()) status = End(engine.get(), *started, call, out, context);
  return status.ok() ? status : Abandon(context, status);
}

}  // namespace tfddl
