// The functions for collectives, sends and receives, and operators. They check their arguments as NCCL does.
#include <cstring>

#include "tests/double/control_internal.h"
#include "tests/double/cuda/device.h"
#include "tests/double/nccl/nccl_operation.h"
#include "tests/double/nccl/nccl_reduce.h"

namespace fake {
namespace {

int Refuse(const Operation& operation, const std::string& why) {
  SetThreadError(Describe(operation) + ": " + why);
  return ncclInvalidArgument;
}

bool Reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

// Copies custom operators, as kPreMulSum: the user may destroy them after the call.
int ResolveOp(Operation* operation, int op) {
  operation->op = op < ncclNumOps ? op : 0;
  if (op < 0) return Refuse(*operation, "no such operator");
  if (op < ncclNumOps) return ncclSuccess;
  Factor factor;
  if (!operation->comm->FindFactor(op, &factor))
    return Refuse(*operation, "the operator was destroyed or never made");
  if (factor.type != operation->type) return Refuse(*operation, "the operator was made for another type");
  operation->op = kPreMulSum;
  operation->factor = factor.bits;
  operation->factor_pointer = factor.device_pointer;
  return ncclSuccess;
}

int Enqueue(Kind kind, const void* in, void* out, size_t count, int type, int op, int root, void* comm_handle,
            void* stream_handle, const char* caller) {
  Operation operation{};
  operation.comm = FindComm(comm_handle, caller);
  if (!operation.comm) return ncclInvalidArgument;
  if (const int code = Ready(*operation.comm, caller)) return code;
  operation.kind = kind;
  operation.in = in;
  operation.out = out;
  operation.count = count;
  operation.root = root;
  if (type < 0 || type >= ncclNumTypes) return ncclInvalidArgument;
  operation.type = type;
  if (root < 0 || root >= operation.comm->size) return Refuse(operation, "no such rank");
  if (Reduces(kind)) {
    if (type >= ncclFloat8e4m3) return Refuse(operation, "the double does not reduce 8-bit floats");
    if (const int code = ResolveOp(&operation, op)) return code;
  }
  operation.stream = FindStream(stream_handle, caller);
  if (!operation.stream) return ncclInvalidArgument;
  if (operation.stream->device() != operation.comm->device) {
    Fault(std::string(caller) + ": the stream is of device " + std::to_string(operation.stream->device()) +
          ", the communicator of device " + std::to_string(operation.comm->device));
    return ncclInvalidUsage;
  }
  return Submit(operation);
}

int Call(Kind kind, const void* in, void* out, size_t count, int type, int op, int root, void* comm,
         void* stream, const char* caller) {
  const int code = Enqueue(kind, in, out, count, type, op, root, comm, stream, caller);
  if (code != ncclSuccess && code != ncclInProgress) FailGroup(code);
  return code;
}

}  // namespace
}  // namespace fake

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kAllReduce, in, out, count, type, op, 0, comm, stream, __func__);
}

ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kReduce, in, out, count, type, op, root, comm, stream, __func__);
}

ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kReduceScatter, in, out, count, type, op, 0, comm, stream, __func__);
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kAllGather, in, out, count, type, 0, 0, comm, stream, __func__);
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kBroadcast, in, out, count, type, 0, root, comm, stream, __func__);
}

ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kSend, in, nullptr, count, type, 0, peer, comm, stream, __func__);
}

ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  FAKE_ENTER();
  return fake::Call(fake::Kind::kRecv, nullptr, out, count, type, 0, peer, comm, stream, __func__);
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, int residence,
                                      ncclComm_t handle) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  if (const int code = fake::Ready(*comm, __func__)) return code;
  if (type < 0 || type >= ncclFloat8e4m3 || !scalar) return ncclInvalidArgument;
  fake::Factor factor{type, 0, nullptr};
  if (residence == ncclScalarHostImmediate)
    std::memcpy(&factor.bits, scalar, fake::SizeOfType(type));
  else if (residence == ncclScalarDevice)
    factor.device_pointer = scalar;
  else
    return ncclInvalidArgument;
  *op = comm->AddFactor(factor);
  return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t handle) {
  FAKE_ENTER();
  FAKE_COMM(comm, handle);
  return comm->RemoveFactor(op) ? ncclSuccess : ncclInvalidArgument;
}
