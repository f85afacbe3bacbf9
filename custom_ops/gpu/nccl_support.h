// The requests that NCCL can run. The engine, the documentation and the tests share this table.
#pragma once

#include <string>

#include "base/request.h"
#include "core/topology/participants.h"

namespace tfddl {

// Whether GPUs can reduce `dtype` by `op`. Collectives that only move bytes take any dtype.
bool NcclReduces(ReduceOp op, DataType dtype);

// Whether ncclAvg computes the request. ncclAvg divides by the number of participants.
bool NcclAverages(const Request& request, const Participants& participants);

// The factor for all values before the sum: both factors of the request and, unless ncclAvg divides, the
// divisor of an Average. 1: no multiplication.
double NcclFactor(const Request& request, const Participants& participants);

// The reason why `request` cannot run on GPUs, and the alternative; empty if it can. The same for equal
// signatures.
std::string NcclObjection(const Request& request, const Participants& participants);

// NCCL's number of a dtype that NcclReduces() supports.
int NcclTypeOf(DataType dtype);

}  // namespace tfddl
