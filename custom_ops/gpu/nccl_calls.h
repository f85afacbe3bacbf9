// Turns a request into a group of NCCL calls.
#pragma once

#include <optional>

#include "base/request.h"
#include "core/collectives/row_agreement.h"
#include "core/topology/participants.h"
#include "gpu/nccl_device.h"

namespace tfddl {

// The launch of one request.
class NcclLaunch {
 public:
  // `index`: of this rank among the participants. `rows`: of an allgather or alltoall, else null. All
  // references have to outlive this object.
  NcclLaunch(const NcclDevice& device, NcclComm comm, const Request& request,
             const Participants& participants, int index, const RowAgreement* rows);

  // Enqueues the calls on the device's stream, maybe without finishing. Raises: std::runtime_error.
  void Start();

  // Releases NCCL's resources. Call it once, after the communicator is no longer busy.
  void End();

 private:
  void KeepError(int code, const char* call);
  void Issue();
  void Allreduce();
  void Reducescatter();
  void Broadcast();
  void Allgather();
  void Alltoall();
  int ReductionOp();

  const NcclDevice& device_;
  const GpuApi& api_;
  NcclComm comm_;
  const Request& request_;
  const Participants& participants_;
  int index_;
  const RowAgreement* rows_;
  int size_;
  size_t element_;
  int op_ = kNcclSum;
  std::optional<int> made_op_;  // a custom operation, which End() destroys
  // The first call that failed:
  int code_ = kNcclSuccess;
  const char* failed_ = "";
};

}  // namespace tfddl
