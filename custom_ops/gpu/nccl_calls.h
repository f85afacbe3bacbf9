// From a request to calls of NCCL: one group of them.
#pragma once

#include <optional>

#include "base/request.h"
#include "core/collectives/participants.h"
#include "core/collectives/row_agreement.h"
#include "gpu/nccl_device.h"

namespace tfddl {

// One request on its way to the GPU.
class NcclLaunch {
 public:
  // `rows`: of an allgather or alltoall. All have to outlive this object.
  NcclLaunch(const NcclDevice& device, NcclComm comm, const Request& request,
             const Participants& participants, int place, const RowAgreement* rows);

  // Puts it on the stream of the device, or begins to. Raises: std::runtime_error.
  void Start();

  // To be called once, when that is done.
  void End();

 private:
  void Note(int code, const char* call);
  void Issue();
  void Allreduce();
  void Reducescatter();
  void Broadcast();
  void Allgather();
  void Alltoall();
  void Barrier();
  int ReductionOp();

  const NcclDevice& device_;
  const GpuApi& api_;
  NcclComm comm_;
  const Request& request_;
  const Participants& participants_;
  int place_;
  const RowAgreement* rows_;
  int size_;
  size_t element_;
  int op_ = kNcclSum;
  std::optional<int> made_op_;  // that End() gives back
  int code_ = kNcclSuccess;     // of the first call that failed
  const char* failed_ = "";
};

}  // namespace tfddl
