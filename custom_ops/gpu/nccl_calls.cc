#include "gpu/nccl_calls.h"

#include <cstring>

#include "base/rows.h"
#include "core/arithmetic/half.h"
#include "gpu/nccl_support.h"

namespace tfddl {
namespace {

struct Scalar {
  alignas(8) char bytes[8];
};

template <typename T>
Scalar Pack(T value) {
  Scalar scalar = {};
  std::memcpy(scalar.bytes, &value, sizeof value);
  return scalar;
}

// `value` as one element of a floating-point dtype.
Scalar ScalarOf(DataType dtype, double value) {
  switch (dtype) {
    case DataType::kFloat16:
      return Pack(ToFloat16(static_cast<float>(value)));
    case DataType::kBFloat16:
      return Pack(ToBFloat16(static_cast<float>(value)));
    case DataType::kFloat64:
      return Pack(value);
    default:
      return Pack(static_cast<float>(value));
  }
}

int OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return kNcclMin;
    case ReduceOp::kMax:
      return kNcclMax;
    case ReduceOp::kProduct:
      return kNcclProd;
    default:
      return kNcclSum;
  }
}

const char* At(const void* base, int64_t bytes) { return static_cast<const char*>(base) + bytes; }
char* At(void* base, int64_t bytes) { return static_cast<char*>(base) + bytes; }

}  // namespace

NcclLaunch::NcclLaunch(const NcclDevice& device, NcclComm comm, const Request& request,
                       const Participants& participants, int index, const RowAgreement* rows)
    : device_(device),
      api_(*device.api),
      comm_(comm),
      request_(request),
      participants_(participants),
      index_(index),
      rows_(rows),
      size_(static_cast<int>(participants.ranks.size())),
      element_(SizeOf(request.dtype)) {}

void NcclLaunch::KeepError(int code, const char* call) {
  if (code_ != kNcclSuccess || code == kNcclSuccess || code == kNcclInProgress) return;
  code_ = code;
  failed_ = call;
}

void NcclLaunch::Start() {
  op_ = ReductionOp();
  KeepError(api_.ncclGroupStart(), "ncclGroupStart");
  Issue();
  KeepError(api_.ncclGroupEnd(),
            "ncclGroupEnd");  // even after a failed call: the group belongs to the thread
  api_.CheckNccl(code_, failed_);
}

void NcclLaunch::End() {
  if (made_op_) api_.CheckNccl(api_.ncclRedOpDestroy(*made_op_, comm_), "ncclRedOpDestroy");
  made_op_.reset();
}

int NcclLaunch::ReductionOp() {
  if (request_.kind != Kind::kAllreduce && request_.kind != Kind::kReducescatter) return kNcclSum;
  if (NcclAverages(request_, participants_)) return kNcclAvg;
  const double factor = NcclFactor(request_, participants_);
  if (factor == 1) return OpOf(request_.op);
  Scalar scalar = ScalarOf(request_.dtype, factor);
  int op = 0;
  api_.CheckNccl(api_.ncclRedOpCreatePreMulSum(&op, scalar.bytes, NcclTypeOf(request_.dtype),
                                               kNcclScalarHostImmediate, comm_),
                 "ncclRedOpCreatePreMulSum");
  made_op_ = op;
  return op;
}

void NcclLaunch::Issue() {
  switch (request_.kind) {
    case Kind::kAllreduce:
      return Allreduce();
    case Kind::kReducescatter:
      return Reducescatter();
    case Kind::kBroadcast:
      return Broadcast();
    case Kind::kAllgather:
      return Allgather();
    case Kind::kAlltoall:
      return Alltoall();
    case Kind::kBarrier:
    case Kind::kJoin:
      return;  // they move no data, so they never run on GPUs
  }
}

void NcclLaunch::Allreduce() {
  for (const Buffer& buffer : request_.buffers) {
    if (buffer.count == 0) continue;
    KeepError(api_.ncclAllReduce(buffer.in, buffer.out, static_cast<size_t>(buffer.count),
                                 NcclTypeOf(request_.dtype), op_, comm_, device_.stream),
              "ncclAllReduce");
  }
}

// Skips the rows of joined ranks.
void NcclLaunch::Reducescatter() {
  const int type = NcclTypeOf(request_.dtype);
  for (const Buffer& buffer : request_.buffers) {
    if (participants_.complete() && buffer.rows % size_ == 0) {
      const auto count = static_cast<size_t>(buffer.rows / size_ * buffer.row);
      if (count == 0) continue;
      KeepError(api_.ncclReduceScatter(buffer.in, buffer.out, count, type, op_, comm_, device_.stream),
                "ncclReduceScatter");
      continue;
    }
    for (int index = 0; index < size_; ++index) {
      const int owner = participants_.ranks[static_cast<size_t>(index)];
      const int64_t begin = RowsBegin(buffer.rows, owner, participants_.set_size());
      const int64_t count = RowsOf(buffer.rows, owner, participants_.set_size()) * buffer.row;
      if (count == 0) continue;
      KeepError(api_.ncclReduce(At(buffer.in, begin * buffer.row * static_cast<int64_t>(element_)),
                                index == index_ ? buffer.out : nullptr, static_cast<size_t>(count), type, op_,
                                index, comm_, device_.stream),
                "ncclReduce");
    }
  }
}

void NcclLaunch::Broadcast() {
  const int root = participants_.IndexOf(request_.root);
  for (const Buffer& buffer : request_.buffers) {
    const size_t bytes = static_cast<size_t>(buffer.count) * element_;
    if (bytes == 0) continue;
    KeepError(api_.ncclBroadcast(buffer.in, buffer.out, bytes, kNcclUint8, root, comm_, device_.stream),
              "ncclBroadcast");
  }
}

void NcclLaunch::Allgather() {
  for (size_t i = 0; i < request_.buffers.size(); ++i) {
    const Buffer& buffer = request_.buffers[i];
    const int64_t row = buffer.row * static_cast<int64_t>(element_);
    bool even = true;
    for (int index = 0; index < size_; ++index) {
      even &= rows_->received(i, static_cast<size_t>(index)) == rows_->received(i, 0);
    }
    if (even) {
      const auto bytes = static_cast<size_t>(buffer.rows * row);
      if (bytes == 0) continue;
      KeepError(api_.ncclAllGather(buffer.in, rows_->out(i), bytes, kNcclUint8, comm_, device_.stream),
                "ncclAllGather");
      continue;
    }
    for (int index = 0; index < size_; ++index) {
      const auto source = static_cast<size_t>(index);
      const auto bytes = static_cast<size_t>(rows_->received(i, source) * row);
      if (bytes == 0) continue;
      char* out = At(rows_->out(i), rows_->FirstReceived(i, source) * row);
      KeepError(api_.ncclBroadcast(index == index_ ? buffer.in : out, out, bytes, kNcclUint8, index, comm_,
                                   device_.stream),
                "ncclBroadcast");
    }
  }
}

void NcclLaunch::Alltoall() {
  for (size_t i = 0; i < request_.buffers.size(); ++i) {
    const Buffer& buffer = request_.buffers[i];
    const int64_t row = buffer.row * static_cast<int64_t>(element_);
    for (int index = 0; index < size_; ++index) {
      const auto peer = static_cast<size_t>(index);
      const auto sent = static_cast<size_t>(rows_->sent(i, peer) * row);
      const auto received = static_cast<size_t>(rows_->received(i, peer) * row);
      if (sent > 0) {
        KeepError(api_.ncclSend(At(buffer.in, rows_->FirstSent(peer) * row), sent, kNcclUint8, index, comm_,
                                device_.stream),
                  "ncclSend");
      }
      if (received > 0) {
        KeepError(api_.ncclRecv(At(rows_->out(i), rows_->FirstReceived(i, peer) * row), received, kNcclUint8,
                                index, comm_, device_.stream),
                  "ncclRecv");
      }
    }
  }
}

}  // namespace tfddl
